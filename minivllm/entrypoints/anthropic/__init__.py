"""Anthropic's Messages API: another codec on the chat pipeline."""
