"""Chat without a wire format: messages to tokens, tokens to events. Every chat API is a codec on top of this."""
