"""The one place where the version stands; read by pyproject.toml, the CLI and `GET /version`."""

__version__ = "0.1.0"
