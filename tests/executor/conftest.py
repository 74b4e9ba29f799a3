"""A fixture that starts servers."""

from real_server import launch

__all__ = ["launch"]
