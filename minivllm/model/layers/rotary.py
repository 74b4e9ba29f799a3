"""Rotary position embedding (Su et al. 2021) with the scalings of transformers' `modeling_rope_utils`."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from minivllm.config.hf.parts import RopeSpec
from minivllm.config.model_spec import ModelSpec
from minivllm.errors import ConfigError
from minivllm.kernels import Ops


class Rotary:
    """The rotary embeddings of one model, with one table for all layers whose embedding is the same."""

    def __init__(self, spec: ModelSpec, ops: Ops, device: str, max_positions: int):
        self.device = device
        self._spec = spec
        self._ops = ops.rotary
        self._max_positions = max_positions
        self._dim = spec.rotary_dim
        self._tables: dict[RopeSpec, Tensor] = {}

    def of(self, rope: RopeSpec | None) -> Callable[[Tensor, Tensor, Tensor], None] | None:
        """(q, k, positions) → None: turns q and k in place."""
        if rope is None:
            return None
        if rope not in self._tables:
            self._tables[rope] = cos_sin_table(rope, self._dim, self._max_positions).to(self.device)
        return partial(self._ops.apply_rotary, cos_sin=self._tables[rope], interleaved=self._spec.rotary_interleaved)


def cos_sin_table(rope: RopeSpec, dim: int, max_positions: int) -> Tensor:
    """fp32 [max_positions, dim]: cosines of all angles of a position, then their sines, scaled for yarn and longrope."""
    if rope.type == "yarn":
        frequencies, scale = _yarn(rope, dim)
    elif rope.type == "longrope":
        frequencies, scale = _longrope(rope, dim, max_positions)
    else:
        frequencies, scale = _frequencies(rope, dim, max_positions), 1.0
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)


def _frequencies(rope: RopeSpec, dim: int, max_positions: int) -> Tensor:
    theta = rope.theta
    if rope.type == "dynamic":
        # NTK scaling for the longest sequence that is served: the base cannot change while keys are in the cache.
        longest = max(max_positions, rope.original_max_position_embeddings)
        stretch = rope.factor * longest / rope.original_max_position_embeddings - (rope.factor - 1)
        theta *= stretch ** (dim / (dim - 2))
    frequencies = _inverse_powers(theta, dim)
    if rope.type == "linear":
        return frequencies / rope.factor
    return _llama3(rope, frequencies) if rope.type == "llama3" else frequencies


def _inverse_powers(theta: float, dim: int) -> Tensor:
    return 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


def _llama3(rope: RopeSpec, frequencies: Tensor) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between interpolated."""
    original, low, high = rope.original_max_position_embeddings, rope.low_freq_factor, rope.high_freq_factor
    wavelength = 2 * math.pi / frequencies
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    scaled = torch.where(wavelength > original / low, frequencies / rope.factor, frequencies)
    return torch.where((wavelength <= original / low) & (wavelength >= original / high), between, scaled)


def _yarn(rope: RopeSpec, dim: int) -> tuple[Tensor, float]:
    """Peng et al. 2023: dimensions that turn often keep their frequency, slow ones are interpolated, with a ramp between."""
    original = rope.original_max_position_embeddings

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)).clamp(0, 1)
    kept = _inverse_powers(rope.theta, dim)
    return kept / rope.factor * ramp + kept * (1 - ramp), _yarn_scale(rope)


def _yarn_scale(rope: RopeSpec) -> float:
    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def _longrope(rope: RopeSpec, dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Ding et al. 2024: a divisor for each frequency. Those for long texts, which lose a little on short ones, are taken if
    sequences may be long: keys in the cache cannot change when their sequence grows.
    """
    original = rope.original_max_position_embeddings
    divisors = rope.long_factor if max_positions > original else rope.short_factor
    if len(divisors) != dim // 2:
        raise ConfigError(f"longrope needs {dim // 2} factors, and config.json has {len(divisors)}.", param="model")
    usual = math.sqrt(1 + math.log(rope.factor) / math.log(original)) if rope.factor > 1 else 1.0
    return _inverse_powers(rope.theta, dim) / torch.tensor(divisors), rope.attention_factor or usual
