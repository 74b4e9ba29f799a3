"""How fast a model's matrices are multiplied, tried on matrices of the same forms. Used by `Worker.plan`."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minivllm.kernels import Ops
from minivllm.model.layers.matrix import Matrix
from minivllm.model.quantization.grouped import Grouped
from minivllm.model.quantization.rounded import Rounded
from minivllm.model.quantization.unquantized import Unquantized

_BATCHES = (1, 8, 32, 128)
_MOST_BYTES = 1 << 28  # more than caches hold
_LEAST_BYTES = 1 << 24
_WEIGHTS = 1 << 24  # of one matrix; of larger ones a part of the rows stands for all
_PATTERN = 16  # matrices, so as to have all of a layer in it
_SIDE = 2048
_FEW = 3  # rows to record with
_TIMES = 5


@torch.inference_mode()
def multiplying_rates(
    matrices: Sequence[Matrix], ops: Ops, device: str, read_bytes: int, free_bytes: int
) -> tuple[list[tuple[int, float]], float]:
    """Numbers of rows, and bytes of weights a second that are multiplied with so many; and bytes a second that are merely read.
    `read_bytes`: by a step of the model; that many are taken here, within bounds.
    """
    total = min(max(_LEAST_BYTES, read_bytes), _MOST_BYTES, free_bytes // 8)
    made, size = _filled((_of_the_form(matrix, ops) for matrix in itertools.cycle(matrices[:_PATTERN])), total, device)
    rates = [(batch, size / seconds) for batch, seconds in _seconds(made, _BATCHES, ops, device).items()]
    if all(isinstance(matrix.scheme, Unquantized) for matrix in made):
        return rates, rates[0][1]
    dtype = matrices[0].dtype
    plain, size = _filled((Matrix(Unquantized(ops), (_SIDE,), _SIDE, dtype) for _ in itertools.count()), total, device)
    return rates, size / _seconds(plain, (1,), ops, device)[1]


def _filled(matrices: Iterator[Matrix], total: int, device: str) -> tuple[list[Matrix], int]:
    """As many as have so many bytes, and how many these are."""
    made, size, given = [], 0, []
    while size < total:
        matrix = next(matrices)
        size += sum(parameter.kept_bytes for parameter in matrix.parameters().values())
        for name, parameter in matrix.parameters().items():
            given.append(torch.ones(parameter.shape, dtype=parameter.dtype, device=device))
            setattr(matrix, name, given[-1])
        matrix.finish_loading()
        made.append(matrix)
    given.clear()  # not before: packed weights would lie where these were, without the large pages that the engine's have
    return made, size


def _of_the_form(matrix: Matrix, ops: Ops) -> Matrix:
    scheme, columns = matrix.scheme, matrix.shape[1]
    if isinstance(scheme, Rounded):  # to round takes longer than all the rest
        scheme = Grouped(ops, scheme.form)
    return Matrix(scheme, (min(matrix.shape[0], max(32, _WEIGHTS // columns // 32 * 32)),), columns, matrix.dtype)


def _seconds(matrices: list[Matrix], batches: Sequence[int], ops: Ops, device: str) -> dict[int, float]:
    """Of one pass over all with so many rows, the best of several: what other programs take is not the machine's speed."""
    columns, dtype = {matrix.shape[1] for matrix in matrices}, matrices[0].dtype

    def inputs(rows: int) -> dict[int, Tensor]:
        return {size: torch.ones((rows, size), dtype=dtype, device=device) for size in columns}

    def multiply(inputs: dict[int, Tensor]) -> Tensor:
        for matrix in matrices:
            out = matrix.scheme.apply(matrix, inputs[matrix.shape[1]], None)
        return out

    run = multiply
    if ops.recording is not None:  # as the engine does it: one call, for which the threads meet once
        few = inputs(_FEW)
        program = ops.recording.record(lambda: multiply(few), list(few.values()), (_FEW,), max(batches))

        def run(inputs: dict[int, Tensor]) -> Tensor:
            return program.run(list(inputs.values()), (len(next(iter(inputs.values()))),))

    given, best = {batch: inputs(batch) for batch in batches}, dict.fromkeys(batches, math.inf)
    for _ in range(_TIMES):
        for batch in batches:
            begin = time.perf_counter()
            run(given[batch])[0, 0].item()  # to look at a number is to wait until it is there
            best[batch] = min(best[batch], time.perf_counter() - begin)
    return best
