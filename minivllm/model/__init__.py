"""The network: families of decoders over small layers, attention back ends, and loading of their weights."""
