"""From generated text to chat events."""
