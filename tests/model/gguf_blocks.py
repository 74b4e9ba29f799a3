"""Blocks of every GGUF format with random values and harmless scales, and what keeping them packed costs."""

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import quants
from gguf_files import file_bytes, model_metadata

from minivllm.kernels import ops_for
from minivllm.model.loading.gguf_blocks import FORMATS

_HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(kind: str, rows: int, columns: int) -> tuple[bytes, np.ndarray]:
    """Bytes of a matrix, and the matrix in float32 by the gguf package."""
    number = gguf.GGMLQuantizationType[kind]
    weights, size = gguf.GGML_QUANT_SIZES[number]
    rng = np.random.default_rng(number)
    blocks = rng.integers(0, 256, (rows * columns // weights, size), dtype=np.uint8)
    for at in _HALVES.get(kind, (0,)):
        blocks[:, at : at + 2] = rng.uniform(1e-4, 1e-3, (len(blocks), 1)).astype("<f2").view(np.uint8)
    return blocks.tobytes(), quants.dequantize(blocks, number).reshape(rows, columns)


def tensor_file(path: Path, kind: str, blocks: bytes, shape: tuple[int, ...]) -> Path:
    """A file with one feed-forward matrix."""
    tensors = {"blk.0.ffn_up.weight": (int(gguf.GGMLQuantizationType[kind]), shape, blocks)}
    path.write_bytes(file_bytes(model_metadata("qwen2"), tensors))
    return path


def error_kept_packed(kind: str) -> float:
    """Of the weights as they are kept, against the gguf package's: root mean square, of that of the weights."""
    blocks, expected = random_blocks(kind, rows=64, columns=1024)
    ours, weight = FORMATS[kind], torch.from_numpy(expected)
    rows = torch.frombuffer(bytearray(blocks), dtype=torch.uint8).view(
        -1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    )
    parts = (read(rows, ours.form).reshape(64, -1) for read in (ours.pack_values, ours.pack_scales, ours.pack_least))
    ops = ops_for("cpu", use_extension=False).gemm_grouped
    kept = ops.rows(ops.pack(*parts, ours.form.bits), torch.arange(64), torch.float32)
    return float((kept - weight).norm() / weight.norm())
