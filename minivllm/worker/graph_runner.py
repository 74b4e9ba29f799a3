"""`GraphRunner`: the forward pass as one recorded program or a graph of the device, else operation by operation."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from minivllm.kernels import Ops, Unrecordable
from minivllm.model.attention.backend import AttentionBackend
from minivllm.model.attention.metadata import AttentionMetadata
from minivllm.model.context import ForwardContext
from minivllm.model.interface import Model
from minivllm.utils.logging import get_logger
from minivllm.worker.batch_graphs import BatchGraphs
from minivllm.worker.devices.base import Device
from minivllm.worker.forward_inputs import ForwardInputs

logger = get_logger(__name__)

# Sizes of the batch that is recorded: small, and primes, by which a count in a recorded call shows what it counts.
_TOKENS, _SEQS = 11, 7


class GraphRunner:
    def __init__(
        self, model: Model, backend: AttentionBackend, ops: Ops, device: Device, max_seqs: int, table_width: int,
        no_input: Tensor | None = None,
    ):  # fmt: skip
        """table_width: how far apart block tables are. no_input: what the model is given, of no tokens; default: token ids."""
        self._model = model
        self._backend = backend
        self._recording = ops.recording if ops.group.is_recordable else None
        self._device = device
        self._max_seqs = max_seqs
        self._program = None
        self._graphs: BatchGraphs | None = None
        self._table_width = table_width
        self._no_input = torch.zeros(0, dtype=torch.int64, device=device.torch_name) if no_input is None else no_input

    @torch.inference_mode()
    def capture(self, kv_caches: Sequence[Tensor], max_tokens: int) -> None:
        """Record the model on these caches, for steps of up to `max_tokens`; else operations run one by one."""
        self._program = self._graphs = None
        if self._device.captures:
            self._graphs = BatchGraphs(
                partial(self._compute, kv_caches), self._device, self._no_input, self._max_seqs, self._table_width
            )
        if self._recording is None:
            return
        inputs = _blank_inputs(self._no_input, self._table_width)
        try:
            program = self._recording.record(
                lambda: self._forward(inputs, kv_caches), tensors_of(inputs), (_TOKENS, _SEQS), max_tokens
            )
        except Unrecordable as reason:
            logger.info("operations run one by one: %s has no native form", reason)
            return
        logger.debug("recorded %d operations", len(program.ops))
        self._program = program

    def run(self, inputs: ForwardInputs, kv_caches: Sequence[Tensor]) -> Tensor:
        """Final hidden states [num_tokens, hidden_size], valid until the next run."""
        program, num_tokens = self._program, len(inputs.input_ids)
        if self._graphs is not None:
            hidden = self._graphs.run(inputs.input_ids, inputs.positions, inputs.attention)
            if hidden is not None:
                return hidden
        if program is None or num_tokens > program.max_rows or inputs.token_types is not None:
            return self._forward(inputs, kv_caches)
        assert inputs.attention.block_tables.stride(0) == self._table_width
        return program.run(tensors_of(inputs), (num_tokens, len(inputs.attention.context_lens)))

    def _forward(self, inputs: ForwardInputs, kv_caches: Sequence[Tensor]) -> Tensor:
        return self._compute(kv_caches, inputs.input_ids, inputs.positions, inputs.attention, inputs.token_types)

    def _compute(
        self, kv_caches: Sequence[Tensor], input_ids: Tensor, positions: Tensor, attention: AttentionMetadata,
        token_types: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        ctx = ForwardContext(self._backend, self._backend.prepare(attention), kv_caches, token_types)
        return self._model.forward(input_ids, positions, ctx)


def tensors_of(inputs: ForwardInputs) -> list[Tensor]:
    """What differs from step to step."""
    of = inputs.attention
    return [inputs.input_ids, inputs.positions, of.query_start, of.context_lens, of.block_tables, of.slot_mapping]


def _blank_inputs(no_input: Tensor, table_width: int) -> ForwardInputs:
    """Never computed with; only types, strides and identities count."""
    ids = no_input.new_zeros((_TOKENS, *no_input.shape[1:]))
    positions, slots = (torch.zeros(_TOKENS, dtype=torch.int64) for _ in range(2))
    starts, contexts = (torch.zeros(n, dtype=torch.int32) for n in (_SEQS + 1, _SEQS))
    tables = torch.zeros((_SEQS, table_width), dtype=torch.int32)
    none = np.zeros(0, dtype=np.int64)
    return ForwardInputs(ids, positions, AttentionMetadata(starts, contexts, tables, slots), ids[:0], none, starts.numpy())
