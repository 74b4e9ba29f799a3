"""`ConvertedSource`: a checkpoint under the names, and in the shapes, that transformers' modelling code has today."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from minivllm.model.loading.source import TensorSource, parts_of
from minivllm.model.quantization.grouped import Form


@dataclass(slots=True)
class _Conversion:
    """Checkpoint tensors that become one or several of the model's together, such as all experts of a layer."""

    converter: WeightConverter
    target: str
    sources: list[tuple[str, str]] = field(default_factory=list)  # pattern, name


class ConvertedSource(TensorSource):
    def __init__(self, source: TensorSource, model: PreTrainedModel, wanted: Mapping[str, tuple[int, ...]]):
        """wanted: what the model asks for."""
        self.described_by = source.described_by
        self._source = source
        self._model: Any = _Shapes(model, wanted)
        self._found = source.shapes()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._direct: dict[str, str] = {}
        self._converted: dict[str, _Conversion] = {}
        self._ready: dict[str, Tensor] = {}  # what came with the tensor that was read last
        mapping = get_model_conversion_mapping(model)
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        by_pattern = {pattern: entry for entry in converters for pattern in entry.source_patterns}
        known = dict.fromkeys([*wanted, *model.all_tied_weights_keys], True)
        conversions: dict[str, _Conversion] = {}
        for name in sorted(self._found, key=dot_natural_key):
            ours, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, known)
            if ours not in known and name in known:
                ours, pattern = name, None
            if pattern is None:
                self._direct[ours] = name
                self._shapes[ours] = self._found[name] or (1,)
            else:
                conversion = conversions.setdefault(ours, _Conversion(by_pattern[pattern], ours))
                conversion.sources.append((pattern, name))
        for conversion in conversions.values():
            made = self._convert(
                conversion, {name: torch.empty(self._found[name], device="meta") for _, name in conversion.sources}
            )
            for ours, tensor in made.items():
                self._converted[ours] = conversion
                self._shapes[ours] = tuple(tensor.shape)

    def packed_form(self, names: tuple[str, ...]) -> Form | None:
        theirs = [self._direct[name] for name in names if name in self._direct]
        return self._source.packed_form(tuple(theirs)) if len(theirs) == len(names) else None

    def keep_packed(self, names: tuple[str, ...], form: Form) -> None:
        parts = parts_of(self._direct, names)
        self._source.keep_packed(tuple(self._direct.pop(name) for name in names), form)
        self._direct |= parts
        found = self._source.shapes()
        self._shapes |= {ours: found[theirs] for ours, theirs in parts.items()}
        for name in names:
            del self._shapes[name]

    def is_unused(self, name: str) -> bool:
        return name in self._direct and self._source.is_unused(self._direct[name])

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        if name in self._direct:
            return self._source.read(self._direct[name]).view(self._shapes[name])
        if name not in self._ready:
            conversion = self._converted[name]
            self._ready = self._convert(conversion, {theirs: self._source.read(theirs) for _, theirs in conversion.sources})
        return self._ready.pop(name)

    def release(self, name: str) -> None:
        for theirs in [self._direct[name]] if name in self._direct else [n for _, n in self._converted[name].sources]:
            self._source.release(theirs)

    def close(self) -> None:
        self._ready.clear()
        self._source.close()

    def _convert(self, conversion: _Conversion, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        converter = deepcopy(conversion.converter)
        for pattern, name in conversion.sources:
            converter.add_tensor(conversion.target, name, pattern, tensors[name])  # type: ignore[arg-type]
        made = converter.convert(conversion.target, model=self._model, config=self._model.config)
        return {name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in made.items()}


class _Shapes:
    """The model as conversions ask for it: with parameters of which only the shapes are known."""

    def __init__(self, model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]]):
        self._model = model
        self._shapes = shapes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def get_parameter(self, name: str) -> Tensor:
        return torch.empty(self._shapes[name], device="meta")
