"""OpenAI's Responses API: another codec on the chat pipeline, and a memory of what was answered."""
