"""transformers' attention interface, carried over to the back end of the step: the one place where tokens see each other."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from minivllm.config.hf.parts import LayerSpec
from minivllm.config.model_spec import ModelSpec
from minivllm.model.attention.backend import AttentionForm
from minivllm.model.context import ForwardContext

NAME = "minivllm"  # of our attention, among transformers' own
NOT_BY_INTERFACE = "its attention does not go through transformers' attention interface"


class Unsupported(Exception):
    """Why a model cannot run this way; ends a sentence that begins with its architecture."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a model asks of attention in one layer. The n-th call of every forward pass is the same."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    form: AttentionForm  # without sinks: they are weights, and come with each call


class AttentionPass(ABC):
    """One forward pass, from the side of its attention. It has to be `running` while the model is called."""

    @contextmanager
    def running(self) -> Iterator[None]:
        before = _RUNNING.set(self)
        try:
            yield
        finally:
            _RUNNING.reset(before)

    def mask(self, shape: tuple[int, ...], sees: Callable[..., Any], reach: int | None, device: torch.device) -> Tensor:
        """Instead of an attention mask: models pass it on to `attend`, perhaps layer by layer another. It has no memory."""
        return torch.empty(shape, dtype=torch.bool, device="meta")

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Mapping[str, Any]) -> Tensor:
        """[1, heads, num_tokens, dim] each -> [1, num_tokens, num_heads, value_dim]"""


_RUNNING: ContextVar[AttentionPass] = ContextVar("running attention pass")


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, None]:
    return _RUNNING.get().attend(query, key, value, attention_mask, options), None


def _mask(
    batch_size: int, q_length: int, kv_length: int, *, mask_function: Callable[..., Any], device: torch.device,
    local_size: int | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    return _RUNNING.get().mask((batch_size, 1, q_length, kv_length), mask_function, local_size, device)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)


class Recorder(AttentionPass):
    """Notes what a model asks for in a pass over one text. What it answers is nothing: zeros."""

    def __init__(self, max_model_len: int):
        self.calls: list[AttentionCall] = []
        self._max_model_len = max_model_len
        self._windows: list[tuple[Tensor, int]] = []  # of the masks that were made

    def mask(self, shape: tuple[int, ...], sees: Callable[..., Any], reach: int | None, device: torch.device) -> Tensor:
        made = torch.ones(shape, dtype=torch.bool, device=device)  # to be known again, and not to be a mask of any use
        self._windows.append((made, self._window(sees, reach)))
        return made

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Mapping[str, Any]) -> Tensor:
        if query.shape[:1] != (1,) or key.shape[2] != query.shape[2]:
            raise Unsupported("its layers attend to something else than the tokens of the text")
        if options.get("is_causal") is False:
            raise Unsupported("its layers look at later tokens")
        scale, soft_cap = options.get("scaling"), options.get("softcap")
        form = AttentionForm(
            scale=query.shape[3] ** -0.5 if scale is None else float(scale),
            window=self._window_of(mask, options.get("sliding_window")),
            soft_cap=float(soft_cap or 0.0),
        )
        self.calls.append(AttentionCall(query.shape[1], key.shape[1], query.shape[3], value.shape[3], form))
        return value.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))

    def _window(self, sees: Callable[..., Any], reach: int | None) -> int:
        """From what the mask is said to show. Chunks of text that is never longer than one are no chunks."""

        def visible(query: int, key: int) -> bool:
            return bool(sees(0, 0, torch.tensor(query), torch.tensor(key)))

        if visible(0, 1):
            raise Unsupported("its layers look at later tokens")
        if not reach or reach >= self._max_model_len:
            return 0
        if visible(reach, 0) or not visible(reach, 1):
            raise Unsupported(f"its layers attend within chunks of {reach} tokens (it could with --max-model-len {reach})")
        return reach

    def _window_of(self, mask: Tensor | None, window: int | None) -> int:
        for made, its_window in self._windows:
            if mask is not None and mask.dtype == torch.bool and mask.is_set_to(made):
                return its_window
        if mask is not None and not _is_causal(mask):
            raise Unsupported("it makes attention masks of its own")
        return window if window and window < self._max_model_len else 0


class PagedPass(AttentionPass):
    """Keys and values go into the paged cache of the step, padded where layers are not of one size."""

    def __init__(self, calls: Sequence[AttentionCall], spec: ModelSpec, ctx: ForwardContext):
        self._layers = iter(list(zip(calls, ctx.kv_caches, strict=True)))
        self._num_kv_heads = max(call.num_kv_heads for call in calls)
        self._head_dim = spec.head_dim
        self._ctx = ctx

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Mapping[str, Any]) -> Tensor:
        call, kv = next(self._layers)
        q, k, v = (self._fit(x[0].transpose(0, 1), value.dtype) for x in (query, key, value))  # [num_tokens, heads, head_dim]
        if call.num_kv_heads < self._num_kv_heads:
            k, v = (x.repeat_interleave(self._num_kv_heads // call.num_kv_heads, dim=1) for x in (k, v))
        sinks = options.get("s_aux")
        form = call.form if sinks is None else replace(call.form, sinks=sinks.float().contiguous())
        out = self._ctx.backend.forward(q, k, v, kv, self._ctx.metadata, form)
        return out[None, ..., : call.value_dim]

    def _fit(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        missing = self._head_dim - x.shape[2]
        return (F.pad(x, (0, missing)) if missing else x).to(dtype).contiguous()


def spec_with(spec: ModelSpec, calls: Sequence[AttentionCall], num_ranks: int) -> ModelSpec:
    """The model's spec with all that the cache and its back end must know of the layers, each rank having as many heads."""
    if not calls:
        raise Unsupported(NOT_BY_INTERFACE)
    num_kv_heads = max(call.num_kv_heads for call in calls)
    for call in calls:
        if num_kv_heads % call.num_kv_heads or call.num_heads % num_kv_heads:
            raise Unsupported(
                f"its layers have {call.num_kv_heads} and {num_kv_heads} heads for keys and values, which one cache cannot hold"
            )
    return replace(
        spec,
        num_heads=max(call.num_heads for call in calls) * num_ranks,
        num_kv_heads=num_kv_heads * num_ranks,
        head_dim=max(max(call.key_dim, call.value_dim) for call in calls),
        layers=tuple(LayerSpec(window=call.form.window) for call in calls),
    )


def _is_causal(mask: Tensor) -> bool:
    """Whether it hides the later tokens, and nothing else."""
    if mask.shape[-1] != mask.shape[-2]:
        return False
    shown = mask if mask.dtype == torch.bool else mask == 0
    return bool((shown == torch.ones_like(shown).tril()).all())
