"""In which form a layer's matrix is held and multiplied: one file per scheme, and the list of them."""
