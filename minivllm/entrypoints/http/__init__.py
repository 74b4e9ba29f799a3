"""The HTTP server around the engine: process life, app, errors, streams."""
