"""Fixtures of the end-to-end tests: real servers with the real demo model."""

from real_server import launch, server

__all__ = ["launch", "server"]
