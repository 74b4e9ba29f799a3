"""Before it serves, a model shows that it gives with our attention what it gives with transformers' own.

Code that others wrote may let tokens see each other elsewhere than in attention, or count positions by itself; then texts in
one batch would mix, and no error would say so.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from minivllm.model.attention.backend import AttentionBackend
from minivllm.model.attention.metadata import AttentionMetadata
from minivllm.model.context import ForwardContext
from minivllm.model.transformers.attention import NAME, Unsupported

_LENGTHS = (21, 8)  # of two texts; each is computed in two steps, beside the other
_FIRST_STEP = (12, 5)
_BLOCK = 16
_TOLERANCE = 1e-2  # relative, of any token's hidden state in float32
_HALF_TOLERANCE = 0.1  # in other types of the median token's: rounding may send a token to another expert

Forward = Callable[[Tensor, Tensor, ForwardContext], Tensor]


@dataclass(slots=True)
class Answer:
    """Of transformers, to one text."""

    hidden: Tensor  # [num_tokens, hidden_size]
    logits: Tensor  # [num_tokens, vocab_size]
    form: type  # of the output that the head gets


def texts_for(vocab_size: int, max_model_len: int, device: str) -> list[Tensor]:
    rng = random.Random(0)
    lengths = [min(length, max_model_len) for length in _LENGTHS]
    return [torch.tensor([rng.randrange(vocab_size) for _ in range(length)], device=device) for length in lengths]


def ask(model: PreTrainedModel, decoder: nn.Module, text: Tensor) -> Answer:
    """By transformers' plain attention."""
    outputs = []
    hook = decoder.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    try:
        with _attention(model, "eager"):
            logits = model(input_ids=text[None], use_cache=False).logits[0]
    finally:
        hook.remove()
    return Answer(outputs[-1][0][0], logits, type(outputs[-1]))


@contextmanager
def _attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """The model's attention is another one inside of the block."""
    configs: list[Any] = [module.config for module in model.modules() if hasattr(module, "config")]
    for config in configs:
        config._attn_implementation = name
    try:
        yield
    finally:
        for config in configs:
            config._attn_implementation = NAME


def prove(forward: Forward, head: Callable[[Tensor], Tensor], backend: AttentionBackend, num_layers: int, texts: list[Tensor],
          answers: list[Answer]) -> None:  # fmt: skip
    """`Unsupported` if hidden states differ, or what the head makes of them."""
    dtype, device = answers[0].hidden.dtype, texts[0].device
    blocks = -(-max(len(text) for text in texts) // _BLOCK)
    shape = backend.kv_shape(blocks * len(texts), _BLOCK, dtype)
    caches = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
    tables = torch.arange(blocks * len(texts), dtype=torch.int32, device=device).view(len(texts), blocks)
    middles = [min(middle, len(text) - 1) for middle, text in zip(_FIRST_STEP, texts, strict=True)]
    for begins, ends in (([0] * len(texts), middles), (middles, [len(text) for text in texts])):
        spans = list(zip(begins, ends, strict=True))
        positions = [torch.arange(begin, end, device=device) for begin, end in spans]
        slots = [tables[i][at // _BLOCK].long() * _BLOCK + at % _BLOCK for i, at in enumerate(positions)]
        starts = torch.tensor([0, *(end - begin for begin, end in spans)]).cumsum(0)
        metadata = AttentionMetadata(
            starts.to(device, torch.int32), torch.tensor(ends, dtype=torch.int32, device=device), tables, torch.cat(slots)
        )
        ids = torch.cat([text[begin:end] for text, (begin, end) in zip(texts, spans, strict=True)])
        hidden = forward(ids, torch.cat(positions), ForwardContext(backend, backend.prepare(metadata), caches))
        expected = torch.cat([answer.hidden[begin:end] for answer, (begin, end) in zip(answers, spans, strict=True)])
        _compare("the hidden states", hidden, expected)
    _compare("the logits", head(answers[0].hidden), answers[0].logits)


def _compare(what: str, ours: Tensor, theirs: Tensor) -> None:
    errors = (ours.float() - theirs.float()).norm(dim=-1) / theirs.float().norm(dim=-1).clamp(min=1e-6)
    exact = theirs.dtype == torch.float32
    error = float(errors.max() if exact else errors.median())
    if not error <= (_TOLERANCE if exact else _HALF_TOLERANCE):  # NaN is no less than anything
        raise Unsupported(f"in a batch {what} are not what they are alone (relative error {error:.2g})")
