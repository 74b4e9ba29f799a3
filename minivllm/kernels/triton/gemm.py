"""Linear layers with weights in the type of the activations: cuBLAS, by torch, has no need of us."""

from minivllm.kernels.reference.gemm import linear, pack, rows

__all__ = ["linear", "pack", "rows"]
