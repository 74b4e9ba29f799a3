"""Every op in plain torch: the truth for all other kernels, and what runs where there is no faster one."""
