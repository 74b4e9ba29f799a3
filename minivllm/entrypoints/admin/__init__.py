"""Routes about the server itself: health, version, metrics, tokenizer."""
