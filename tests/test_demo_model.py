"""`examples/get_demo_model.py`: its GGUF reader and its bfloat16 on small data, and that a complete folder is left alone."""

import json
import runpy
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "get_demo_model.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def test_gguf(script: dict[str, Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    quants = rng.integers(-127, 128, (2, 32), dtype=np.int8)
    nibbles = rng.integers(0, 16, (2, 32), dtype=np.uint8)
    halves = np.array([0.5, 2.0, -1.5, 0.25], dtype=np.float16)
    q8 = b"".join(halves[i].tobytes() + quants[i].tobytes() for i in range(2))
    packed = nibbles[:, :16] | nibbles[:, 16:] << 4
    q4 = b"".join(halves[i].tobytes() + halves[i + 2].tobytes() + packed[i].tobytes() for i in range(2))
    plain = np.arange(3, dtype=np.float32)
    blobs = [
        ("a", (32, 2), script["Q8_0"], q8),
        ("b", (64, 1), script["Q4_1"], q4),
        ("c", (3,), script["F32"], plain.tobytes()),
    ]
    metadata = (
        text("name") + struct.pack("<I", 8) + text("héllo")
        + text("numbers") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3)
        + text("words") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text("y")
        + text("ratio") + struct.pack("<If", 6, 0.5)
    )  # fmt: skip
    header, body = b"GGUF" + struct.pack("<IQQ", 3, len(blobs), 4) + metadata, b""
    for name, shape, kind, blob in blobs:
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(body))
        body += blob + b"\0" * (-len(blob) % 32)
    path = tmp_path / "small.gguf"
    path.write_bytes(header + b"\0" * (-len(header) % 32) + body)

    gguf = script["GGUF"](path)
    assert gguf.metadata == {"name": "héllo", "numbers": (1, -2, 3), "words": ["x", "y"], "ratio": 0.5}
    scale, least = halves[:2, None].astype(np.float32), halves[2:, None].astype(np.float32)
    assert np.array_equal(gguf.weight("a"), scale * quants)
    assert np.array_equal(gguf.weight("b"), (scale * nibbles + least).reshape(1, 64))
    assert np.array_equal(gguf.weight("c"), plain)


def test_bfloat16_is_torchs(script: dict[str, Any]) -> None:
    values = np.random.default_rng(0).standard_normal(10_000, dtype=np.float32)
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001], dtype=np.uint32).view(np.float32)  # halfway: to even, both ways
    values = np.concatenate([values, ties, -ties, np.zeros(1, np.float32)])
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(script["to_bfloat16"](values), expected)


def test_a_complete_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"Demo model: {tmp_path} is there already.\n"


def test_the_fetched_model_is_whole(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (30, 576, 49152)
    with open(smollm2 / "model.safetensors", "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__")
    assert len(header) == 272 and {entry["dtype"] for entry in header.values()} == {"BF16"}
    end = max(entry["data_offsets"][1] for entry in header.values())
    assert (smollm2 / "model.safetensors").stat().st_size == 8 + length + end
