"""The masks of the op `sampling.choose`: 64 columns in an int64."""

import torch
from torch import Tensor


def unpack_masks(masks: Tensor, columns: int) -> Tensor:
    """bool [rows, columns] of int64 [rows, columns / 64 rounded up]: whether a column may come."""
    bits = masks[:, :, None] >> torch.arange(64, device=masks.device) & 1
    return bits.flatten(1)[:, :columns].bool()
