"""Single cells of the logits, given as lists of columns per row: how the sparse stages read and write."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Columns = npt.NDArray[np.int64]


def cell_index(logits: Tensor, rows_and_columns: list[tuple[int, Columns]]) -> Tensor:
    """int64: index into `logits.view(-1)` of the given columns of each row, in order."""
    width = logits.shape[1]
    return torch.from_numpy(np.concatenate([row * width + columns for row, columns in rows_and_columns])).to(logits.device)


def forbid(logits: Tensor, rows_and_columns: list[tuple[int, Columns]]) -> None:
    logits.view(-1)[cell_index(logits, rows_and_columns)] = float("-inf")
