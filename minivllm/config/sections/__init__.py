"""One frozen dataclass per concern. A field made by `option()` is a flag; any other field is derived by `config.resolve`."""
