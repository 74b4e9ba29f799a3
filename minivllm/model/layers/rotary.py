"""Rotary position embedding (Su et al. 2021) with the scalings of transformers' `modeling_rope_utils`."""

import math

import torch
from torch import Tensor

from minivllm.config.model_spec import RopeSpec


def cos_sin_table(rope: RopeSpec, head_dim: int, max_positions: int) -> Tensor:
    """fp32 [max_positions, head_dim]: cosines of all angles of a position, then their sines, scaled for yarn."""
    if rope.type == "yarn":
        frequencies, scale = _yarn(rope, head_dim)
    else:
        frequencies, scale = _frequencies(rope, head_dim, max_positions), 1.0
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)


def _frequencies(rope: RopeSpec, head_dim: int, max_positions: int) -> Tensor:
    theta = rope.theta
    if rope.type == "dynamic":
        # NTK scaling for the longest sequence that is served: the base cannot change while keys are in the cache.
        longest = max(max_positions, rope.original_max_position_embeddings)
        stretch = rope.factor * longest / rope.original_max_position_embeddings - (rope.factor - 1)
        theta *= stretch ** (head_dim / (head_dim - 2))
    frequencies = _inverse_powers(theta, head_dim)
    if rope.type == "linear":
        return frequencies / rope.factor
    return _llama3(rope, frequencies) if rope.type == "llama3" else frequencies


def _inverse_powers(theta: float, head_dim: int) -> Tensor:
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))


def _llama3(rope: RopeSpec, frequencies: Tensor) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between interpolated."""
    original, low, high = rope.original_max_position_embeddings, rope.low_freq_factor, rope.high_freq_factor
    wavelength = 2 * math.pi / frequencies
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    scaled = torch.where(wavelength > original / low, frequencies / rope.factor, frequencies)
    return torch.where((wavelength <= original / low) & (wavelength >= original / high), between, scaled)


def _yarn(rope: RopeSpec, head_dim: int) -> tuple[Tensor, float]:
    """Peng et al. 2023: dimensions that turn often keep their frequency, slow ones are interpolated, with a ramp between."""
    original = rope.original_max_position_embeddings

    def dimension(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)).clamp(0, 1)
    kept = _inverse_powers(rope.theta, head_dim)
    return kept / rope.factor * ramp + kept * (1 - ramp), _yarn_scale(rope)


def _yarn_scale(rope: RopeSpec) -> float:
    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
