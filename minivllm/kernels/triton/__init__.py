"""Ops for CUDA GPUs in Triton: the same modules and functions as `reference`, which says what each of them does."""
