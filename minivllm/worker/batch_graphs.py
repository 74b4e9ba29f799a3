"""`BatchGraphs`: decoding steps as device graphs, one for each of some numbers of sequences; a step takes the next larger one.

Captured is the model's forward pass for steps with one token per sequence: all shapes are then known from the number of
sequences. Steps with prompts, the output head, sampling and logprobs run eagerly: their shapes differ from step to step.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from minivllm.model.attention.metadata import AttentionMetadata
from minivllm.worker.devices.base import Captured, Device

Forward = Callable[[Tensor, Tensor, AttentionMetadata], Tensor]


def batch_sizes(max_seqs: int) -> list[int]:
    """Close together where a wasted row costs a larger share of the step."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_seqs + 16, 16)]
    return [size for size in sizes if size < max_seqs] + [max_seqs]


class BatchGraphs:
    def __init__(self, forward: Forward, device: Device, no_input: Tensor, max_seqs: int, table_width: int):
        """forward: input ids, positions and metadata -> hidden states. The device must be one that captures. no_input: ids of
        no tokens, or whatever a pipeline stage is given instead."""
        self._sizes = batch_sizes(max_seqs)
        self._ids = no_input.new_zeros((max_seqs, *no_input.shape[1:]))
        self._positions = torch.zeros(max_seqs, dtype=torch.int64, device=device.torch_name)
        self._attention = _padding(max_seqs, table_width, device.torch_name)
        self._graphs: dict[int, Captured] = {}
        for size in reversed(self._sizes):  # the largest first: the others find room in its memory
            inputs = self._ids[:size], self._positions[:size], _first(self._attention, size)
            self._graphs[size] = device.capture(partial(forward, *inputs))

    def run(self, input_ids: Tensor, positions: Tensor, attention: AttentionMetadata) -> Tensor | None:
        """Hidden states [num_seqs, hidden_size], valid until the next run; None if no graph fits the step."""
        num_seqs = len(attention.context_lens)
        if len(input_ids) != num_seqs or num_seqs > self._sizes[-1]:
            return None
        size = self._sizes[bisect_left(self._sizes, num_seqs)]
        self._ids[:num_seqs].copy_(input_ids)
        self._positions[:num_seqs].copy_(positions)
        self._fill(attention, num_seqs, size)
        graph = self._graphs[size]
        graph.replay()
        return graph.result[:num_seqs]

    def _fill(self, given: AttentionMetadata, num_seqs: int, size: int) -> None:
        """Rows beyond num_seqs: no keys, and nothing to store."""
        mine = self._attention
        mine.context_lens[:num_seqs].copy_(given.context_lens)
        mine.slot_mapping[:num_seqs].copy_(given.slot_mapping)
        mine.block_tables[:num_seqs, : given.block_tables.shape[1]].copy_(given.block_tables)
        if num_seqs < size:
            mine.context_lens[num_seqs:size].zero_()
            mine.slot_mapping[num_seqs:size].fill_(-1)


def _padding(rows: int, table_width: int, device: str) -> AttentionMetadata:
    return AttentionMetadata(
        query_start=torch.arange(rows + 1, dtype=torch.int32, device=device),
        context_lens=torch.zeros(rows, dtype=torch.int32, device=device),
        block_tables=torch.zeros((rows, table_width), dtype=torch.int32, device=device),
        slot_mapping=torch.full((rows,), -1, dtype=torch.int64, device=device),
    )


def _first(of: AttentionMetadata, rows: int) -> AttentionMetadata:
    return AttentionMetadata(of.query_start[: rows + 1], of.context_lens[:rows], of.block_tables[:rows], of.slot_mapping[:rows])
