"""`RenamedSource`: a checkpoint whose tensors have other names than the model's. Used by `load` for pooling models."""

from collections.abc import Mapping

from torch import Tensor

from minivllm.model.loading.source import TensorSource, parts_of
from minivllm.model.quantization.grouped import Form

_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # of norms that came from TensorFlow
_UNUSED = (".position_ids", ".rotary_emb.inv_freq")  # tables that old exports keep


class RenamedSource(TensorSource):
    def __init__(self, source: TensorSource, names: Mapping[str, str]):
        """names: the model's → the checkpoint's; what is not among them is not there."""
        self.described_by = source.described_by
        self._source = source
        self._names = dict(names)

    @classmethod
    def of_pooling_model(cls, source: TensorSource, base: str) -> "RenamedSource":
        """Checkpoints of the layers alone, without a head, have names without the prefix of the base model."""
        found = [name for name in source.shapes() if not name.endswith(_UNUSED)]
        whole = not base or any(name.startswith(f"{base}.") for name in found)
        prefix = "" if whole else f"{base}."
        return cls(source, {prefix + _new_ending(name): name for name in found})

    def packed_form(self, names: tuple[str, ...]) -> Form | None:
        return self._source.packed_form(tuple(self._names.get(name, name) for name in names))

    def keep_packed(self, names: tuple[str, ...], form: Form) -> None:
        parts = parts_of(self._names, names)
        self._source.keep_packed(tuple(self._names.pop(name) for name in names), form)
        self._names |= parts

    def is_unused(self, name: str) -> bool:
        return self._source.is_unused(self._names[name])

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = self._source.shapes()
        return {ours: shapes[theirs] for ours, theirs in self._names.items()}

    def read(self, name: str) -> Tensor:
        return self._source.read(self._names[name])

    def release(self, name: str) -> None:
        self._source.release(self._names[name])

    def close(self) -> None:
        self._source.close()


def _new_ending(name: str) -> str:
    for old, new in _OLD_ENDINGS.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
