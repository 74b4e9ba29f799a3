"""What quantized checkpoints hold in place of a weight: one file for each tool that writes them."""
