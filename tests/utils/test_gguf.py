"""The reader of GGUF headers: what it finds, and one clear line for every way in which a file can be wrong."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_files import file_bytes, text, value

from minivllm.errors import ConfigError
from minivllm.utils.gguf import GGUFFile, read_gguf

METADATA = {"name": "héllo", "count": 7, "ratio": 0.5, "yes": True, "words": ["x", "", "yz"], "numbers": [1, -2, 3]}


def whole() -> bytes:
    plain = np.arange(6, dtype="<f4").tobytes()
    return file_bytes(METADATA, {"a": (0, (2, 3), plain), "b": (3, (1, 64), bytes(range(40)))})


def write(folder: Path, data: bytes) -> Path:
    path = folder / "small.gguf"
    path.write_bytes(data)
    return path


def refusal(folder: Path, data: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        GGUFFile(write(folder, data))
    assert "\n" not in caught.value.message
    return caught.value.message.removeprefix(f"{folder / 'small.gguf'} is not a complete GGUF file: ")


def test_metadata_and_tensors(tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path, whole()))
    assert file.text("name") == "héllo" and file.integer("count") == 7 and file.number("ratio") == 0.5
    assert file.flag("yes") is True and file.number("count") == 7.0
    assert list(file.texts("words")) == ["x", "", "yz"] and file.texts("words")[2] == "yz" and len(file.texts("words")) == 3
    assert list(file.integers("numbers")) == [1, -2, 3]
    assert file.text("absent") is None and list(file.texts("absent")) == [] and list(file.integers("absent")) == []
    a, b = file.tensors["a"], file.tensors["b"]
    assert (a.type.name, a.shape, b.type.name, b.shape) == ("F32", (2, 3), "Q4_1", (1, 64))
    assert file.data[a.begin : a.end] == np.arange(6, dtype="<f4").tobytes()
    assert file.data[b.begin : b.end] == bytes(range(40))


@pytest.mark.parametrize(
    "read",
    [lambda f: f.text("count"), lambda f: f.integer("name"), lambda f: f.integer("yes"), lambda f: f.flag("count"),
     lambda f: f.texts("numbers"), lambda f: f.integers("words")],
)  # fmt: skip
def test_a_value_of_another_type(tmp_path: Path, read) -> None:
    with pytest.raises(ConfigError, match="has a wrong type"):
        read(GGUFFile(write(tmp_path, whole())))


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    data = whole()
    used = len(data) - 24  # the padding of the last tensor may be missing
    for size in range(used):
        assert refusal(tmp_path, data[:size]).endswith("Fetch it again.")
    GGUFFile(write(tmp_path, data[:used]))


@pytest.mark.parametrize("magic", [b"", b"GGML" + b"\0" * 40, b"\x80\x02}q" * 20])
def test_wrong_magic(tmp_path: Path, magic: bytes) -> None:
    assert refusal(tmp_path, magic) == "it does not begin as one. Fetch it again."


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_other_versions(tmp_path: Path, version: int) -> None:
    data = b"GGUF" + struct.pack("<I", version) + whole()[8:]
    assert f"is GGUF version {version}; versions 2 and 3 are read" in refusal(tmp_path, data)


HUGE = 2**64 - 1
ENDS = "it ends within its header. Fetch it again."


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<QQ", HUGE, 0),
        struct.pack("<QQ", 0, HUGE),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", HUGE) + b"key",  # a key's length
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IQ", 8, HUGE),  # a string's
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, HUGE),  # an array's, of strings
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQ", 9, 10, HUGE),  # of numbers
        struct.pack("<QQ", 0, 1) + text("k") + struct.pack("<IIQQ", 9, 8, 3, HUGE) + b"x" * 64,
    ],
)
def test_counts_and_lengths_beyond_the_file(tmp_path: Path, data: bytes) -> None:
    assert refusal(tmp_path, b"GGUF" + struct.pack("<I", 3) + data) == ENDS


def test_unknown_kinds_of_values(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k")
    assert "a value of unknown type 13" in refusal(tmp_path, head + struct.pack("<IQ", 13, 0))
    assert "an array of type 9" in refusal(tmp_path, head + struct.pack("<IIQ", 9, 9, 1))


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (text("t") + struct.pack("<I", 99), "tensor t has 99 dimensions"),
        (text("t") + struct.pack("<I2QIQ", 2, 1 << 62, 1 << 62, 0, 0), "it ends before the data of t"),
        (text("t") + struct.pack("<IQIQ", 1, 8, 0, 1 << 63), "it ends before the data of t"),
        (text("t") + struct.pack("<IQIQ", 1, 8, 0, 2), "the data of t are not aligned"),
        (text("t") + struct.pack("<IQIQ", 1, 33, 8, 0), "rows of 33 weights in tensor t cannot be Q8_0"),
        (text("t") + struct.pack("<IQIQ", 1, 8, 39, 0), "t has number type 39, which is not supported (supported: F32, F16,"),
    ],
)
def test_hostile_tensors(tmp_path: Path, tensor: bytes, said: str) -> None:
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor
    assert said in refusal(tmp_path, data + b"\0" * 256)


def test_a_tensor_that_is_there_twice(tmp_path: Path) -> None:
    entry = text("t") + struct.pack("<IQIQ", 1, 8, 0, 0)
    assert "tensor t is there twice" in refusal(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + entry * 2 + b"\0" * 256)


@pytest.mark.parametrize("alignment", [4, 12, 1 << 30])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("general.alignment") + value(alignment)
    assert f"general.alignment is {alignment}" in refusal(tmp_path, data)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        GGUFFile(tmp_path / "none.gguf")


def parts(folder: Path, **changed: dict) -> Path:
    """A model in three files, the first with metadata alone; `changed`: metadata by the letter of a part."""
    found = {"a": {}, "b": {"x": (0, (1,), b"xxxx")}, "c": {"y": (0, (1,), b"yyyy"), "z": (0, (1,), b"zzzz")}}
    for number, (letter, tensors) in enumerate(found.items()):
        own = {"name": letter, "split.no": number, "split.count": 3, "split.tensors.count": 3} | changed.get(letter, {})
        name = f"m-0000{number + 1}-of-00003.gguf"
        (folder / name).write_bytes(file_bytes(own, tensors))
    return folder / "m-00001-of-00003.gguf"


def test_a_model_in_parts(tmp_path: Path) -> None:
    file = read_gguf(parts(tmp_path))
    assert file.text("name") == "a"
    data = {name: info.data[info.begin : info.end] for name, info in file.tensors.items()}
    assert data == {"x": b"xxxx", "y": b"yyyy", "z": b"zzzz"} and file.floats("y") == [struct.unpack("<f", b"yyyy")[0]]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"a": {"split.count": 4}}, "is part 1 of 4, and not named so: name them MODEL-00001-of-00004.gguf and so on, and"),
        ({"a": {"split.no": 1}}, "is part 2 of 3, and not named so"),
        ({"b": {"split.count": 2}}, "m-00002-of-00003.gguf is not part 2 of 3: it belongs to another model."),
        ({"c": {"split.no": 1}}, "m-00003-of-00003.gguf is not part 3 of 3: it belongs to another model."),
        ({"a": {"split.tensors.count": 9}}, "have 3 tensors, and should have 9: fetch them again."),
        ({"c": {"split.no": "2"}}, "m-00003-of-00003.gguf is not a complete GGUF file: split.no has a wrong type."),
    ],
)
def test_parts_that_do_not_fit(tmp_path: Path, changed: dict, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_gguf(parts(tmp_path, **changed))
    assert said in caught.value.message and "\n" not in caught.value.message


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    first = parts(tmp_path)
    again = {"split.no": 2, "split.count": 3}
    (tmp_path / "m-00003-of-00003.gguf").write_bytes(file_bytes(again, {"x": (0, (1,), b"xxxx")}))
    with pytest.raises(ConfigError, match=r"m-00003-of-00003.gguf has tensor x, which a part before it has too"):
        read_gguf(first)


def test_missing_parts(tmp_path: Path) -> None:
    first = parts(tmp_path)
    for number in (3, 2):
        (tmp_path / f"m-0000{number}-of-00003.gguf").unlink()
    with pytest.raises(ConfigError) as caught:
        read_gguf(first)
    lost = "m-00002-of-00003.gguf, m-00003-of-00003.gguf"
    assert caught.value.message == f"{tmp_path} lacks {lost}: the model is in 3 files."
