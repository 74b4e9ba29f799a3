"""Blocks of the KV cache from one engine to another: computed here, decoded there. No torch: workers copy them to segments."""
