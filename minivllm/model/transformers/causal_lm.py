"""`TransformersForCausalLM`: any causal language model by transformers' modelling code, as one of our families."""

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from minivllm.config.model_spec import ModelSpec
from minivllm.config.sections.model import ModelConfig
from minivllm.errors import ConfigError, one_line, some_of
from minivllm.kernels import Ops
from minivllm.model.attention.select import select_backend
from minivllm.model.context import ForwardContext
from minivllm.model.interface import CausalLM
from minivllm.model.layers.layer import Layer
from minivllm.model.loading.source import TensorSource
from minivllm.model.transformers.attention import NOT_BY_INTERFACE, AttentionCall, PagedPass, Recorder, Unsupported, spec_with
from minivllm.model.transformers.build import build, decoder_of, fix_rope_lengths, refusal
from minivllm.model.transformers.checkpoint import ConvertedSource
from minivllm.model.transformers.modules import Kept, replace_modules, tie
from minivllm.model.transformers.proof import ask, prove, texts_for
from minivllm.model.transformers.shares import shares_of
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)


class TransformersForCausalLM(CausalLM):
    """Its layers are found under the paths of transformers' modules, so their weights have transformers' names."""

    lm_head = None  # the model has it

    def __init__(
        self, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str, max_model_len: int, config: ModelConfig
    ):  # fmt: skip
        self.spec = spec
        self._ops = ops
        self._dtype = dtype
        self._device = device
        self._max_model_len = max_model_len
        self._module = build(config, spec.architecture, dtype)
        fix_rope_lengths(self._module, max_model_len)
        self._decoder_path, self._decoder = decoder_of(self._module)
        self._layers = replace_modules(self._module, shares_of(self._module, spec, ops.group), ops, dtype, device)
        self._calls: list[AttentionCall] = []
        self._given = _Given()

    def walk(self, path: str = "") -> Iterator[tuple[str, Layer]]:
        yield path, self
        yield from self._layers.items()

    def adapt(self, source: TensorSource) -> TensorSource:
        wanted = {
            f"{path}.{name}".removeprefix("."): parameter.shard.stored_shapes(1)[0]
            for path, layer in self._layers.items()
            for name, parameter in layer.parameters().items()
        }
        found = ConvertedSource(source, self._module, wanted)
        unused = [name for name in found.shapes() if name not in wanted and name not in self._module.all_tied_weights_keys]
        ignored = self._module._keys_to_ignore_on_load_unexpected or ()
        said = [n for n in unused if not (found.is_unused(n) or any(re.search(pattern, n) for pattern in ignored))]
        if said:
            form = "%s has no use for %d tensors of the checkpoint: %s"
            logger.warning(form, self.spec.architecture, len(said), some_of(said))
        return found

    def ignores(self, name: str) -> bool:
        """Only transformers knows what is of use, and it ignores the rest; `adapt` has said what that is."""
        return True

    def loaded(self) -> None:
        for layer in self._layers.values():
            if isinstance(layer, Kept):
                layer.settle()
        tie(self._module)
        try:
            with torch.inference_mode():
                nn.Module.to(self._module, self._device)
                self._settle()
        except ConfigError:
            raise
        except Unsupported as reason:
            raise refusal(self.spec.architecture, str(reason)) from None
        except Exception as e:  # whatever code that is not ours may raise
            said = one_line(e).rstrip(": .")
            raise refusal(self.spec.architecture, f"transformers says {said}") from e

    def _settle(self) -> None:
        """Find out what the layers ask of attention, part them from the head, and see that all is as it was."""
        texts = texts_for(self.spec.vocab_size, self._max_model_len, self._device)
        recorder = Recorder(self._max_model_len)
        with recorder.running():
            self._record(recorder, texts[0])
        self._calls, self.spec = recorder.calls, spec_with(self.spec, recorder.calls, self._ops.group.size)
        answers = [ask(self._module, self._decoder, text) for text in texts]
        self._given.form = answers[0].form
        self._module.set_submodule(self._decoder_path, self._given)
        backend = select_backend(self.spec, self._dtype, self._dtype, self._device)(self.spec, self._ops)
        prove(self.forward, self.compute_logits, backend, len(self._calls), texts, answers)

    def _record(self, recorder: Recorder, text: Tensor) -> None:
        try:
            self._module(input_ids=text[None], use_cache=False)
        except Exception as e:
            if recorder.calls or isinstance(e, Unsupported):
                raise
            raise Unsupported(NOT_BY_INTERFACE) from e  # it stumbled over a mask that is not for it

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        with PagedPass(self._calls, self.spec, ctx).running():
            hidden: Tensor = self._decoder(input_ids=input_ids[None], position_ids=positions[None], use_cache=False)[0]
        return hidden[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self._given.hidden = hidden[None]
        ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=self._device)
        logits: Tensor = self._module(input_ids=ids, use_cache=False).logits
        return logits[0]


class _Given(nn.Module):
    """In the place of the layers, when what a model does to their output is wanted by itself."""

    hidden: Tensor
    form: type

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.form(last_hidden_state=self.hidden)
