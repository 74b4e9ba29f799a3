"""`GGUFFile`: metadata and tensor table of a GGUF file, mapped into memory; `read_gguf` joins parts of a model.
Used by config, the tokenizer and the loader.

Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every count, length and offset is checked against the file before
it is used, and long values stay in the file until they are asked for, so that a hostile header costs no memory.
"""

import mmap
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from minivllm.errors import ConfigError

T = TypeVar("T")

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_U64 = struct.Struct("<Q")
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")  # as gguf-split names them


class TensorType(NamedTuple):
    """How weights are stored: `block_bytes` for every `block` weights of a row."""

    name: str
    block: int
    block_bytes: int


TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    20: TensorType("IQ4_NL", 32, 18),
    23: TensorType("IQ4_XS", 256, 136),
    30: TensorType("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    type: TensorType
    shape: tuple[int, ...]  # outermost first, as torch has it
    data: mmap.mmap  # of the file
    begin: int  # offsets in it
    end: int

    def with_shape(self, shape: tuple[int, ...], begin: int, end: int) -> "TensorInfo":
        return replace(self, shape=shape, begin=begin, end=end)


class GGUFFile:
    """`metadata` by key (arrays as sequences that read the file), `tensors` by name, `data` the mapped file.

    ConfigError in one line if the file is not a whole GGUF file that this program reads.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size < 24 or file.read(4) != MAGIC:
                    raise self.broken("it does not begin as one")
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise ConfigError(f"cannot read {path}: {e.strerror}.", param="model") from e
        self._at = 4
        (version,) = self._read("I")
        if version not in _VERSIONS:
            raise ConfigError(f"{path} is GGUF version {version}; versions 2 and 3 are read (little endian).", param="model")
        num_tensors, num_keys = self._read("QQ")
        self.metadata = dict(self._pairs(num_keys))
        self.tensors = self._tensors(num_tensors)

    def text(self, key: str) -> str | None:
        return self._typed(key, str)

    def integer(self, key: str) -> int | None:
        return self._typed(key, int)

    def number(self, key: str) -> float | None:
        value = self.metadata.get(key)
        return float(value) if isinstance(value, int) else self._typed(key, float)

    def flag(self, key: str) -> bool | None:
        return self._typed(key, bool)

    def texts(self, key: str) -> Sequence[str]:
        """An array of strings; empty if it is not there."""
        value = self._typed(key, TextArray)
        return () if value is None else value

    def integers(self, key: str) -> Sequence[int]:
        """An array of integers; empty if it is not there."""
        value = self.numbers(key)
        if isinstance(value, memoryview) and value.format in "fd":
            raise self.broken(f"{key} has a wrong type")
        return value

    def numbers(self, key: str) -> Sequence[Any]:
        """An array of numbers; empty if it is not there."""
        value = self._typed(key, memoryview)
        return () if value is None else value

    def floats(self, name: str) -> list[float]:
        """A small tensor of float32 numbers; empty if it is not there, or another thing."""
        info = self.tensors.get(name)
        if info is None or info.type.name != "F32":
            return []
        return list(memoryview(info.data)[info.begin : info.end].cast("f"))

    def broken(self, why: str) -> ConfigError:
        return ConfigError(f"{self.path} is not a complete GGUF file: {why}. Fetch it again.", param="model")

    def _typed(self, key: str, kind: type[T]) -> T | None:
        value = self.metadata.get(key)
        if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
            return value
        raise self.broken(f"{key} has a wrong type")

    def _pairs(self, count: int) -> Iterator[tuple[str, Any]]:
        for _ in range(count):
            key = self._string()
            yield key, self._value(*self._read("I"))

    def _tensors(self, count: int) -> dict[str, TensorInfo]:
        entries = []
        for _ in range(count):
            name = self._string()
            (dimensions,) = self._read("I")
            if not 1 <= dimensions <= _MAX_DIMENSIONS:
                raise self.broken(f"tensor {name} has {dimensions} dimensions")
            shape = self._read(f"{dimensions}Q")[::-1]
            entries.append((name, shape, *self._read("IQ")))
        alignment = self.integer("general.alignment") or 32
        if alignment < 8 or alignment % 8 or alignment > 1 << 20:
            raise self.broken(f"general.alignment is {alignment}")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, number, offset in entries:
            if name in tensors:
                raise self.broken(f"tensor {name} is there twice")
            tensors[name] = self._tensor(name, shape, number, start, offset)
        return tensors

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, start: int, offset: int) -> TensorInfo:
        kind = TYPES.get(number)
        if kind is None:
            known = ", ".join(t.name for t in TYPES.values())
            raise ConfigError(
                f"{self.path}: {name} has number type {number}, which is not supported (supported: {known}).", param="model"
            )
        if shape[-1] % kind.block:
            raise self.broken(f"rows of {shape[-1]} weights in tensor {name} cannot be {kind.name}")
        begin = start + offset
        end = begin + prod(shape) // kind.block * kind.block_bytes
        if end > self.size:
            raise self.broken(f"it ends before the data of {name} ({self.size} of at least {end} bytes)")
        if begin % 4:
            raise self.broken(f"the data of {name} are not aligned")
        return TensorInfo(kind, shape, self.data, begin, end)

    def _read(self, format: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + format)
        self._advance(size)
        return struct.unpack_from("<" + format, self.data, self._at - size)

    def _advance(self, size: int) -> None:
        if self._at + size > self.size:
            raise self.broken("it ends within its header")
        self._at += size

    def _string(self) -> str:
        (length,) = self._read("Q")
        self._advance(length)
        return self._decoded(self._at - length, length)

    def _decoded(self, at: int, length: int) -> str:
        return self.data[at : at + length].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(*self._read("IQ"))
        if kind not in _SCALARS:
            raise self.broken(f"its header has a value of unknown type {kind}")
        return self._read(_SCALARS[kind])[0]

    def _array(self, kind: int, length: int) -> "memoryview | TextArray":
        if kind in _SCALARS:
            begin = self._at
            self._advance(struct.calcsize(_SCALARS[kind]) * length)
            format: Any = _SCALARS[kind]
            return memoryview(self.data)[begin : self._at].cast(format)
        if kind != _STRING:
            raise self.broken(f"its header has an array of type {kind}")
        texts = TextArray(self.data, self._at, length)
        at, last, data, size_at = self._at, self.size - 8, self.data, _U64.unpack_from
        for _ in range(length):
            if at > last:
                raise self.broken("it ends within its header")
            at += 8 + size_at(data, at)[0]
        self._advance(at - self._at)
        return texts


class TextArray(Sequence[str]):
    """An array of strings that stay in the file; indexing walks to the place, iterating is what it is for."""

    def __init__(self, data: mmap.mmap, begin: int, length: int):
        self._data, self._begin, self._length = data, begin, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        at, data = self._begin, self._data
        for _ in range(self._length):
            (size,) = _U64.unpack_from(data, at)
            yield data[at + 8 : at + 8 + size].decode("utf-8", "replace")
            at += 8 + size

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def first_part(path: Path) -> Path:
    """The file that has the metadata: by its name, the first part of a divided model, or else the file itself."""
    match = _PART.fullmatch(path.name)
    return path.with_name(f"{match[1]}-00001-of-{match[3]}.gguf") if match else path


def read_gguf(path: Path) -> GGUFFile:
    """The file, and if it is the first part of a model in several files, with the tensors of all of them."""
    file = GGUFFile(path)
    count = file.integer("split.count") or 1
    if count <= 1:
        return file
    match = _PART.fullmatch(path.name)
    if file.integer("split.no") or match is None or (int(match[2]), int(match[3])) != (1, count):
        number = (file.integer("split.no") or 0) + 1
        raise ConfigError(
            f"{path} is part {number} of {count}, and not named so: name them MODEL-00001-of-{count:05}.gguf and so on, and "
            "give the first.",
            param="model",
        )
    others = [path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf") for number in range(2, count + 1)]
    missing = [other.name for other in others if not other.is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ConfigError(f"{path.parent} lacks {', '.join(missing[:3])}{more}: the model is in {count} files.", param="model")
    for number, other in enumerate(others, 1):
        part = GGUFFile(other)
        if (part.integer("split.no"), part.integer("split.count")) != (number, count):
            raise ConfigError(f"{other} is not part {number + 1} of {count}: it belongs to another model.", param="model")
        twice = file.tensors.keys() & part.tensors.keys()
        if twice:
            raise ConfigError(f"{other} has tensor {min(twice)}, which a part before it has too.", param="model")
        file.tensors |= part.tensors
    expected = file.integer("split.tensors.count")
    if expected is not None and expected != len(file.tensors):
        raise ConfigError(
            f"the {count} parts of {path} have {len(file.tensors)} tensors, and should have {expected}: fetch them again.",
            param="model",
        )
    return file
