"""Models that have no family of ours: transformers' modelling code on our attention, cache, linear layers and loader."""
