"""Logits in blocks of 64 columns. The maxima of the blocks, one pass, answer argmax and top-k without a sort of the vocabulary.

blocked: fp32 [rows, num_blocks, BLOCK], the tail of the last block -inf
maxima:  fp32 [rows, num_blocks]
"""

import torch
from torch import Tensor

BLOCK = 64


def to_blocked(logits: Tensor) -> Tensor:
    """[rows, vocab_size] of any float type, in fp32 and padded; shares memory with `logits` where that is so already."""
    rows, vocab_size = logits.shape
    num_blocks = -(-vocab_size // BLOCK)
    if vocab_size == num_blocks * BLOCK:
        return logits.float().view(rows, num_blocks, BLOCK)
    padded = torch.empty((rows, num_blocks * BLOCK), dtype=torch.float32, device=logits.device)
    padded[:, :vocab_size] = logits
    padded[:, vocab_size:] = float("-inf")
    return padded.view(rows, num_blocks, BLOCK)


def argmax(blocked: Tensor, maxima: Tensor) -> Tensor:
    """int64 [rows]: the greatest column, the lowest of equal ones."""
    block = maxima.argmax(-1)
    inside = blocked[torch.arange(len(block), device=block.device), block]
    return block * BLOCK + inside.argmax(-1)


def topk(blocked: Tensor, maxima: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest of each row in falling order: values and columns, [rows, k] each.

    They all lie in the k blocks with the greatest maxima: any other block has k values at least as great outside it.
    """
    num_blocks = blocked.shape[1]
    if k >= num_blocks:
        return blocked.flatten(1).topk(k)
    blocks = maxima.topk(k, sorted=False).indices  # [rows, k]
    candidates = blocked.gather(1, blocks.unsqueeze(-1).expand(-1, -1, BLOCK)).flatten(1)
    values, at = candidates.topk(k)
    columns = blocks.gather(1, at // BLOCK) * BLOCK + at % BLOCK
    return values, columns


def count_above(blocked: Tensor, maxima: Tensor, bound: Tensor) -> Tensor:
    """fp32 [rows]: how many columns are greater than the row's bound."""
    row, _, above = _blocks_above(blocked, maxima, bound)
    return torch.zeros_like(bound).index_add_(0, row, above.sum(-1))


def mass_above(blocked: Tensor, maxima: Tensor, bound: Tensor) -> Tensor:
    """fp32 [rows]: sum of the columns that are greater than the row's bound."""
    row, cells, above = _blocks_above(blocked, maxima, bound)
    return torch.zeros_like(bound).index_add_(0, row, above.mul_(cells).sum(-1))


def _blocks_above(blocked: Tensor, maxima: Tensor, bound: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The blocks that hold something greater than the row's bound: their rows, their cells, and 1.0 where it is, 0.0 else."""
    row, block = (maxima > bound[:, None]).nonzero(as_tuple=True)
    cells = blocked[row, block]
    return row, cells, torch.gt(cells, bound[row, None], out=torch.empty_like(cells))
