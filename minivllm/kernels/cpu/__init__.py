"""Ops of the compiled extension `minivllm._cpu`; what it does not cover (layouts, types) goes to the torch reference."""
