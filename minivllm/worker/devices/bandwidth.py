"""How fast weights are read, by a product of one row with a matrix that no cache holds. Used by `Worker.plan`."""

import time

import torch

from minivllm.kernels import Ops

_COLUMNS = 4096
_BYTES = 1 << 28
_TIMES = 5


@torch.inference_mode()
def read_bandwidth(ops: Ops, dtype: torch.dtype, device: str, free_bytes: int) -> float:
    """Bytes a second, the best of some tries; it takes a quarter of a GiB, or less where little is free."""
    rows = max(32, min(_BYTES, free_bytes // 8) // dtype.itemsize // _COLUMNS)
    weight = ops.gemm.pack(torch.ones((rows, _COLUMNS), dtype=dtype, device=device))
    x = torch.ones((1, _COLUMNS), dtype=dtype, device=device)
    best = float("inf")
    for _ in range(_TIMES):
        begin = time.perf_counter()
        ops.gemm.linear(x, weight)[0, 0].item()  # to look at a number is to wait until it is there
        best = min(best, time.perf_counter() - begin)
    return rows * _COLUMNS * dtype.itemsize / best
