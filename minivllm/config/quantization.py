"""`StoredWeights`: in which form a checkpoint holds its weights, from `quantization_config` in its config.json."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from minivllm.errors import ConfigError

# What --quantization makes of ordinary checkpoints while they are read; bitsandbytes is a form of checkpoints, too.
ONLINE = ("int8", "int4", "fp8", "bitsandbytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeights:
    method: str  # as --quantization names it
    form: str = ""  # gptq: gptq, gptq_v2; compressed-tensors: pack-, int-, float-quantized; bitsandbytes: 4bit, 8bit
    bits: int = 4
    block: tuple[int, int] | None = None  # rows and columns that share a scale, where they do


def read(config: Mapping[str, Any]) -> StoredWeights | None:
    """None for an ordinary checkpoint; ConfigError for a form that we cannot read."""
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return None
    method = str(found.get("quant_method", "unknown")) if isinstance(found, Mapping) else str(found)
    if method not in METHODS or not isinstance(found, Mapping):
        _refuse(f"{method} weights", f"those of {', '.join(METHODS)} are")
    return METHODS[method](found)


def choose(asked: str | None, stored: StoredWeights | None) -> str | None:
    """The resolved --quantization."""
    if stored is None:
        if asked is not None and asked not in ONLINE:
            raise ConfigError(
                f"--quantization {asked} is for checkpoints in that form, but config.json has no quantization_config. "
                f"An ordinary checkpoint can be quantized while it is read: {', '.join(ONLINE)}.",
                param="quantization",
            )
        return asked
    if asked not in (None, stored.method):
        raise ConfigError(
            f"Quantization method specified in the model config ({stored.method}) does not match the quantization method "
            f"specified in the `quantization` argument ({asked}).",
            param="quantization",
        )
    return stored.method


def _gptq(found: Mapping[str, Any]) -> StoredWeights:
    bits, form = found.get("bits", 4), str(found.get("checkpoint_format") or "gptq")
    if bits not in (4, 8):
        _refuse(f"{bits}-bit GPTQ weights", "those of 4 and 8 bits are")
    if form not in ("gptq", "gptq_v2"):
        _refuse(f"GPTQ weights in the {form} format", "gptq and gptq_v2 are")
    return StoredWeights(method="gptq", form=form, bits=bits)


def _awq(found: Mapping[str, Any]) -> StoredWeights:
    bits, version = found.get("bits", found.get("w_bit", 4)), str(found.get("version", "gemm")).lower()
    if bits != 4:
        _refuse(f"{bits}-bit AWQ weights", "those of 4 bits are")
    if version != "gemm":
        _refuse(f"AWQ weights in the {version} format", "gemm is")
    return StoredWeights(method="awq")


def _compressed(found: Mapping[str, Any]) -> StoredWeights:
    groups = [group for group in (found.get("config_groups") or {}).values() if isinstance(group, Mapping)]
    kinds = {_weights_of(group, str(group.get("format") or found.get("format"))) for group in groups}
    if len(kinds) != 1:
        _refuse("compressed-tensors weights of several kinds", "those of one kind are")
    if str((found.get("sparsity_config") or {}).get("format", "dense")) != "dense":
        _refuse("sparse compressed-tensors weights", "dense ones are")
    return kinds.pop()


def _weights_of(group: Mapping[str, Any], form: str) -> StoredWeights:
    """Of a group of config_groups."""
    weights, activations = group.get("weights") or {}, group.get("input_activations") or {}
    bits, kind = weights.get("num_bits", 0), weights.get("type", "int")
    known = {
        "pack-quantized": kind == "int" and bits in (4, 8),
        "int-quantized": kind == "int" and bits == 8,
        "naive-quantized": bits == 8,
        "float-quantized": kind == "float" and bits == 8,
    }
    taken = activations.get("num_bits", 16)
    if not known.get(form) or (taken != 16 and (taken, bits) != (8, 8)):
        _refuse(
            f"compressed-tensors weights of {bits} bits ({kind}, {form}) with activations of {taken}",
            "W4A16, W8A16 and W8A8 with integers, and FP8 are",
        )
    form = f"{kind}-quantized" if form == "naive-quantized" else form
    return StoredWeights(method="compressed-tensors", form=form, bits=bits, block=_block(weights.get("block_structure")))


def _fp8(found: Mapping[str, Any]) -> StoredWeights:
    kind = found.get("fmt", "e4m3")
    if kind not in ("e4m3", "float8_e4m3fn"):
        _refuse(f"FP8 weights in {kind}", "e4m3 is")
    return StoredWeights(method="fp8", bits=8, block=_block(found.get("weight_block_size")))


def _bitsandbytes(found: Mapping[str, Any]) -> StoredWeights:
    return StoredWeights(method="bitsandbytes", form="8bit" if found.get("load_in_8bit") else "4bit")


def _mxfp4(found: Mapping[str, Any]) -> StoredWeights:
    return StoredWeights(method="mxfp4")


def _block(found: Any) -> tuple[int, int] | None:
    if not found:
        return None
    sizes = found.split("x") if isinstance(found, str) else found
    try:
        rows, columns = (int(size) for size in sizes)
    except (TypeError, ValueError):
        _refuse(f"blocks of {found!r} weights", "two sizes are")
    return rows, columns


METHODS: dict[str, Callable[[Mapping[str, Any]], StoredWeights]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
}


def _refuse(what: str, instead: str) -> NoReturn:
    raise ConfigError(f"{what} are not supported: {instead}.", param="model")
