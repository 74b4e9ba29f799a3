"""Workers that share one model: who is in which group, and how a group's ranks exchange tensors."""
