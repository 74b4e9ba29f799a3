"""Attention back ends: how keys and values are kept, written and attended to."""
