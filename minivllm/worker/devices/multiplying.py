"""How fast a model's matrices are multiplied, tried on matrices of the same forms. Used by `Worker.plan`."""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import torch

from minivllm.kernels import Ops
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.grouped import Grouped
from minivllm.model.quantization.rounded import Rounded

_BATCHES = (1, 8, 32, 128)
_MOST_BYTES = 1 << 28  # more than caches hold
_LEAST_BYTES = 1 << 24
_WEIGHTS = 1 << 24  # of one matrix; of larger ones a part of the rows stands for all
_PATTERN = 16  # matrices, so as to have all of a layer in it
_TIMES = 5


@torch.inference_mode()
def multiplying_rates(
    matrices: Sequence[Matrix], ops: Ops, device: str, read_bytes: int, free_bytes: int
) -> list[tuple[int, float]]:
    """Numbers of rows, and bytes of weights a second that are multiplied with so many. `read_bytes`: by a step of the model;
    that many are taken here, within bounds.
    """
    total = min(max(_LEAST_BYTES, read_bytes), _MOST_BYTES, free_bytes // 8)
    made, size = [], 0
    for matrix in itertools.cycle(matrices[:_PATTERN]):
        like = _of_the_form(matrix, ops)
        size += sum(parameter.kept_bytes for parameter in like.parameters().values())
        for name, parameter in like.parameters().items():
            setattr(like, name, torch.ones(parameter.shape, dtype=parameter.dtype, device=device))
        like.finish_loading()
        made.append(like)
        if size >= total:
            break
    return [(batch, size / _seconds(made, batch, device)) for batch in _BATCHES]


def _of_the_form(matrix: Matrix, ops: Ops) -> Matrix:
    scheme, columns = matrix.scheme, matrix.shape[1]
    if isinstance(scheme, Rounded):  # to round takes longer than all the rest
        scheme = Grouped(ops, scheme.form)
    return Matrix(scheme, (min(matrix.shape[0], max(32, _WEIGHTS // columns // 32 * 32)),), columns, matrix.dtype)


def _seconds(matrices: list[Matrix], batch: int, device: str) -> float:
    """Of one pass over all; the usual, not the best."""
    inputs = {matrix.shape[1]: torch.ones((batch, matrix.shape[1]), dtype=matrix.dtype, device=device) for matrix in matrices}

    def passes() -> Iterator[float]:
        for _ in range(_TIMES):
            begin = time.perf_counter()
            for matrix in matrices:
                out = matrix.scheme.apply(matrix, inputs[matrix.shape[1]], None)
            out[0, 0].item()  # to look at a number is to wait until it is there
            yield time.perf_counter() - begin

    return statistics.median(passes())
