"""Ways into the engine: HTTP, command line, Python."""
