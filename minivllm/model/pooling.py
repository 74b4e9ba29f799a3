"""`Pooler`: hidden states of whole texts → embeddings or class scores. Called by the worker in the place of a sampler."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm.config.sections.pooling import PoolingConfig
from minivllm.messages.pooling_params import PoolingParams
from minivllm.model.interface import Model
from minivllm.model.loading.dense import Dense


class PoolingState:
    """What is known of one text whose hidden states come chunk by chunk, in fp32."""

    def __init__(self, types: tuple[str, ...], params: PoolingParams, num_tokens: int):
        self.params = params
        self.per_token = params.task == "token_embed"
        self._types = ("all",) if self.per_token else types
        self._num_tokens = num_tokens
        self._num_seen = 0
        self._parts: dict[str, Tensor] = {}

    def add(self, hidden: Tensor) -> None:
        """The next tokens, [num_tokens, hidden_size]; their memory is the runner's, to be used again."""
        for kind in self._types:
            part, known = self._summary(kind, hidden), self._parts.get(kind)
            if known is not None:
                part = _join(kind, known, part)
            self._parts[kind] = part
        self._num_seen += len(hidden)

    def finish(self) -> Tensor:
        """[1, sum of widths] once all tokens have come; [num_tokens, hidden_size] for a task that is about tokens."""
        assert self._num_seen == self._num_tokens, "tokens of a text are missing"
        return torch.cat([self._parts[kind] / self._divisor(kind) for kind in self._types], dim=-1)

    def _summary(self, kind: str, hidden: Tensor) -> Tensor:
        if kind in ("cls", "last", "all"):
            rows = {"cls": slice(1), "last": slice(-1, None), "all": slice(None)}[kind]
            return hidden[rows].to(torch.float32, copy=True)
        wide = hidden.float()
        if kind == "max":
            return wide.amax(0, keepdim=True)
        if kind == "weightedmean":  # later tokens count more
            wide = wide * torch.arange(self._num_seen + 1, self._num_seen + len(wide) + 1, device=wide.device)[:, None]
        return wide.sum(0, keepdim=True)

    def _divisor(self, kind: str) -> float:
        count = self._num_tokens
        return {"mean": count, "mean_sqrt_len_tokens": count**0.5, "weightedmean": count * (count + 1) / 2}.get(kind, 1)


def _join(kind: str, known: Tensor, new: Tensor) -> Tensor:
    if kind == "cls":
        return known
    if kind == "last":
        return new
    if kind == "all":
        return torch.cat((known, new))
    return torch.maximum(known, new) if kind == "max" else known + new


class Pooler:
    """Heads work on the pooled rows of all texts that end in a step together."""

    def __init__(self, config: PoolingConfig, model: Model, dtype: torch.dtype, dense: Sequence[Dense] = ()):
        """dtype: of the model's weights; `dense` layers compute in fp32."""
        self._config = config
        self._model = model
        self._dtype = dtype
        self._dense = dense

    def open(self, params: PoolingParams | None, num_tokens: int) -> PoolingState:
        """Without parameters: as the model does it by default."""
        return PoolingState(self._config.types, params or PoolingParams(), num_tokens)

    def finish(self, states: Sequence[PoolingState]) -> list[Tensor]:
        """fp32 [width] of each text, in their order; [num_tokens, width] for a task that is about tokens."""
        rows = [state.finish() for state in states]
        pooled = torch.cat(rows)
        if self._config.task == "classify":
            results = self._model.classify(pooled.to(self._dtype)).float()
        else:
            results = pooled
            for layer in self._dense:
                results = layer(results)
        parts = results.split([len(each) for each in rows])
        activated = [self._activate(part, state.params) for part, state in zip(parts, states, strict=True)]
        return [part if state.per_token else part[0] for part, state in zip(activated, states, strict=True)]

    def _activate(self, x: Tensor, params: PoolingParams) -> Tensor:
        wanted = params.use_activation
        if self._config.task == "classify":
            kind = self._config.activation if wanted is not False else "identity"
            return x.softmax(-1) if kind == "softmax" else x.sigmoid() if kind == "sigmoid" else x
        if params.dimensions is not None:
            x = x[:, : params.dimensions]
        return F.normalize(x, dim=-1) if (self._config.normalize if wanted is None else wanted) else x
