"""Who holds which block of the KV cache, and which blocks hold a known prefix. No tensors here: blocks are numbers."""
