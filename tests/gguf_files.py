"""Writes small GGUF files: a header by hand, so that it can be wrong too, and a whole tiny model."""

import struct
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "BF16": 30}
BYTES = "".join([chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255 else "" for b in range(256)])


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(content: Any) -> bytes:
    """Type and value, by the type in Python; int is a uint32."""
    if isinstance(content, bool):
        return struct.pack("<I?", 7, content)
    if isinstance(content, int):
        return struct.pack("<II", 4, content)
    if isinstance(content, float):
        return struct.pack("<If", 6, content)
    if isinstance(content, str):
        return struct.pack("<I", 8) + text(content)
    if content and isinstance(content[0], str):
        return struct.pack("<IIQ", 9, 8, len(content)) + b"".join(map(text, content))
    if isinstance(content[0], float):
        return struct.pack(f"<IIQ{len(content)}f", 9, 6, len(content), *content)
    return struct.pack(f"<IIQ{len(content)}i", 9, 5, len(content), *content)


def file_bytes(metadata: dict[str, Any], tensors: dict[str, tuple[int, tuple[int, ...], bytes]]) -> bytes:
    """`tensors`: name -> type number, shape (outermost first), data."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    header += b"".join(text(key) + value(content) for key, content in metadata.items())
    body = b""
    for name, (number, shape, data) in tensors.items():
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, len(body))
        body += data + b"\0" * (-len(data) % 32)
    return header + b"\0" * (-len(header) % 32) + body


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, types and merges of a tokenizer: two control tokens, every byte, and a few merges."""
    alphabet = [*BYTES, *(chr(256 + i) for i in range(256 - len(BYTES)))]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "Ġ Ġ"]
    tokens = ["<s>", "</s>", *alphabet, *(merge.replace(" ", "") for merge in merges), "<mark>", "[PAD0]", "[PAD1]"]
    types = [3, 3, *[1] * (len(alphabet) + len(merges)), 4, 5, 5]
    return tokens, types, merges


def model_metadata(kind: str = "llama", pre: str = "smollm") -> dict[str, Any]:
    tokens, types, merges = vocabulary()
    return {
        "general.architecture": kind,
        f"{kind}.block_count": 2,
        f"{kind}.context_length": 128,
        f"{kind}.embedding_length": 64,
        f"{kind}.feed_forward_length": 96,
        f"{kind}.attention.head_count": 4,
        f"{kind}.attention.head_count_kv": 2,
        f"{kind}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{kind}.rope.freq_base": 5000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}",
    }


def model_shapes(kind: str = "llama") -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(vocabulary()[0]), 64), "output_norm.weight": (64,)}
    for i in range(2):
        layer = {
            "attn_norm": (64,), "ffn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64),
            "attn_output": (64, 64), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
        if kind == "qwen2":
            shapes |= {f"blk.{i}.attn_{name}.bias": (rows,) for name, rows in {"q": 64, "k": 32, "v": 32}.items()}
    return shapes


def encode(weights: np.ndarray, number: int) -> bytes:
    """float32 as F32, F16, Q8_0, Q4_0 or Q4_1."""
    if number == NUMBERS["F32"]:
        return weights.astype("<f4").tobytes()
    if number == NUMBERS["F16"]:
        return weights.astype("<f2").tobytes()
    blocks = weights.reshape(-1, 32)
    if number == NUMBERS["Q8_0"]:
        scale = (np.abs(blocks).max(1) / 127).astype("<f2")
        quants = np.rint(blocks / scale[:, None].astype(np.float32)).clip(-127, 127).astype(np.int8)
        return b"".join(s.tobytes() + q.tobytes() for s, q in zip(scale, quants, strict=True))
    if number == NUMBERS["Q4_0"]:
        scale = (np.abs(blocks).max(1) / 7).astype("<f2")
        nibbles = (np.rint(blocks / scale[:, None].astype(np.float32)).clip(-8, 7) + 8).astype(np.uint8)
        packed = nibbles[:, :16] | nibbles[:, 16:] << 4
        return b"".join(s.tobytes() + q.tobytes() for s, q in zip(scale, packed, strict=True))
    least = blocks.min(1).astype("<f2")
    scale = ((blocks.max(1) - blocks.min(1)) / 15).astype("<f2")
    nibbles = np.rint((blocks - least[:, None].astype(np.float32)) / scale[:, None].astype(np.float32))
    nibbles = nibbles.clip(0, 15).astype(np.uint8)
    packed = nibbles[:, :16] | nibbles[:, 16:] << 4
    return b"".join(s.tobytes() + m.tobytes() + q.tobytes() for s, m, q in zip(scale, least, packed, strict=True))


def write_model(path: Path, kind: str = "llama", number: int = 0, pre: str = "smollm", **metadata: Any) -> Path:
    """A random model whose matrices are stored as type `number`, vectors as F32."""
    rng = np.random.default_rng(1)
    tensors = {}
    for name, shape in model_shapes(kind).items():
        weights = rng.standard_normal(shape, dtype=np.float32) * 0.2 + (name.endswith("norm.weight") * 1.0)
        stored = number if len(shape) > 1 else 0
        tensors[name] = (stored, shape, encode(weights, stored))
    path.write_bytes(file_bytes(model_metadata(kind, pre) | metadata, tensors))
    return path
