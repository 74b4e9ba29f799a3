"""From files to a model that is ready to run: sources of tensors, and the loader that fills the parameters."""
