"""Tensors of a quantized checkpoint: its weights in the type of the activations, or packed as the kernels multiply them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from minivllm.config.quantization import StoredWeights
from minivllm.errors import ConfigError
from minivllm.model.loading.source import PARTS, TensorSource, part_of
from minivllm.model.quantization.formats.format import Parts
from minivllm.model.quantization.formats.groups import Grid
from minivllm.model.quantization.grouped import Form
from minivllm.model.quantization.registry import format_of
from minivllm.utils.logging import get_logger

logger = get_logger(__name__)


@dataclass(slots=True)
class _Weight:
    parts: Parts
    grid: Grid
    form: Form | None = None  # in which it is given, if packed
    made: dict[str, Tensor] | None = None  # of that form, until it was read


class QuantizedSource(TensorSource):
    """Which weights are quantized is seen from the tensors that are there, not from lists of layers in config.json."""

    described_by = "config.json and quantization_config"

    def __init__(self, source: TensorSource, stored: StoredWeights, dtype: torch.dtype):
        self._source = source
        self._dtype = dtype
        self._format = format_of(stored)
        found = source.shapes()
        self._shapes = dict(found)
        self._stems: set[str] = set()
        self._logged = False
        self._weights: dict[str, _Weight] = {}  # by all names under which they, or parts of them, are given
        for name, ends in self._quantized().items():
            parts = Parts(source, found, ends)
            for part in ends.values():
                del self._shapes[part]
            self._stems.add(name.removesuffix("weight"))
            grid = self._format.grid(parts)
            self._weights[name] = _Weight(parts, grid)
            self._shapes[name] = self._format.shape(parts, grid.rows, grid.columns)
        for name in [name for name in self._shapes if name.endswith(self._format.unused)]:
            del self._shapes[name]

    def _quantized(self) -> dict[str, dict[str, str]]:
        """Name of each quantized weight → the tensors that make it, by the ends of their names."""
        stems: dict[str, dict[str, str]] = {}
        for name in self._shapes:
            end = max((end for end in self._format.ends if name.endswith(end)), key=len, default=None)
            if end is not None:
                stems.setdefault(name.removesuffix(end), {})[end] = name
        return {
            stem + self._format.weight: ends
            for stem, ends in stems.items()
            if any(mark in ends for mark in self._format.marks)
        }  # fmt: skip

    def packed_form(self, names: tuple[str, ...]) -> Form | None:
        """In which these weights can be kept together, if they can."""
        grids = [self._weights[name].grid for name in names if name in self._weights]
        forms = [form for form in (grid.form for grid in grids) if form is not None]
        if len(forms) < len(names):
            return None
        orders = [grid.order for grid in grids]
        alike = all(form.codes == forms[0].codes for form in forms) and all(_same(order, orders[0]) for order in orders)
        return forms[0]._replace(group=min(form.group for form in forms), order=orders[0]) if alike else None

    def keep_packed(self, names: tuple[str, ...], form: Form) -> None:
        for name in names:
            weight = self._weights.pop(name)
            weight.form = form
            del self._shapes[name]
            columns = weight.grid.columns
            for part in PARTS:
                packed = part_of(name, part)
                self._weights[packed] = weight
                self._shapes[packed] = self._format.shape(weight.parts, weight.grid.rows, form.width(part, columns))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        weight = self._weights.get(name)
        if weight is None:
            return self._source.read(name)
        if weight.form is None:
            if not self._logged:
                self._log_unpacked()
            return self._format.arrange(weight.parts, self._format.groups(weight.parts, weight.grid).weight(self._dtype))
        if not weight.made:
            weight.made = self._format.groups(weight.parts, weight.grid).packed(weight.form)
        tensor = weight.made.pop(next(part for part in weight.made if name.endswith(part)))
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ConfigError(f"the scales of {name} are too large to be kept in 16 bits.", param="model")
        return self._format.arrange(weight.parts, tensor)

    def release(self, name: str) -> None:
        weight = self._weights.get(name)
        for part in [name] if weight is None else weight.parts.names.values():
            self._source.release(part)

    def close(self) -> None:
        self._source.close()

    def is_unused(self, name: str) -> bool:
        # GPTQ writers add biases, all zero, where the model has none.
        return name.endswith(".bias") and name.removesuffix("bias") in self._stems and not self._source.read(name).any()

    def _log_unpacked(self) -> None:
        plain = [weight.grid.rows * weight.grid.columns for weight in self._weights.values() if weight.form is None]
        size = sum(plain) * self._dtype.itemsize / 1e9
        logger.info("%d quantized weights are unpacked to %s: %.2f GB.", len(plain), str(self._dtype)[6:], size)
        self._logged = True


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and a.equal(b))
