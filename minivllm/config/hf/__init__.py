"""Hugging Face's config.json: what the fields of each family mean. Read by `config.model_spec` only."""
