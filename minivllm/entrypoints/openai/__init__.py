"""The OpenAI API: wire types, codecs and routes."""
