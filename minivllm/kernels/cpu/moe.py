"""Mixture of experts on the compiled kernels; see csrc/cpu/experts.cpp."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu import gemm, gemm_grouped
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES
from minivllm.kernels.reference import moe as reference

Weight = gemm.PackedLinear | gemm_grouped.PackedGroups


class PackedExperts:
    """The weights of one linear layer of all experts, alike in shape and kind."""

    def __init__(self, weights: Sequence[Weight]):
        self.weights = weights
        self.addresses = torch.tensor([weight.data.data_ptr() for weight in weights])


def pack(weight: Tensor) -> PackedExperts:
    """See reference.moe."""
    packed = [one for one in map(gemm.pack, weight) if not isinstance(one, Tensor)]
    if len(packed) < len(weight):
        raise TypeError(
            f"experts' weights must be in float32, bfloat16 or float16 and not empty, got {weight.dtype} {list(weight.shape)}"
        )
    return PackedExperts(packed)


def route(
    logits: Tensor,
    top_k: int,
    bias: Tensor | None = None,
    *,
    sigmoid: bool = False,
    renormalize: bool = False,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """See reference.moe."""
    return reference.route(logits, top_k, bias, sigmoid=sigmoid, renormalize=renormalize, scale=scale)


def pack_groups(
    values: Tensor, scales: Tensor, least: Tensor, bits: int, codes: str | None, dtype: torch.dtype
) -> PackedExperts:
    """See reference.moe."""
    return PackedExperts([gemm_grouped.pack(*parts, bits, codes) for parts in zip(values, scales, least, strict=True)])


def mix(
    x: Tensor,
    experts: Tensor,
    shares: Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    limit: float = 0.0,
) -> Tensor:
    """See reference.moe."""
    hidden, size = down.weights[0].shape
    if x.shape[1:] != (hidden,) or gate_up.weights[0].shape != (2 * size, hidden) or experts.shape != shares.shape:
        raise ValueError(f"shapes do not fit: x {list(x.shape)}, experts {list(experts.shape)}, shares {list(shares.shape)}")
    if experts.dtype != torch.int64 or shares.dtype != torch.float32:
        raise TypeError(f"expected int64 experts and float32 shares, got {experts.dtype} and {shares.dtype}")
    x, experts, shares = x.contiguous(), experts.contiguous(), shares.contiguous()
    out = torch.empty_like(x)
    call(
        _cpu.mix, len(x), DTYPES[x.dtype], x, out, experts, shares, experts.shape[1], len(gate_up.weights),
        *_operands(gate_up, gate_up_bias, x.dtype), *_operands(down, down_bias, x.dtype), hidden, size, limit,
    )  # fmt: skip
    return out


def _operands(experts: PackedExperts, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | int | None, ...]:
    weight = experts.weights[0]
    if isinstance(weight, gemm_grouped.PackedGroups):
        kind, takes = (weight.bits, weight.group, weight.table), torch.bfloat16
    else:
        kind, takes = (0, 0, None), weight.dtype
    if dtype != takes or (bias is not None and (bias.dtype != takes or not bias.is_contiguous())):
        raise TypeError(f"{takes} experts take x and contiguous biases of that type, got {dtype} and {bias and bias.dtype}")
    return experts.addresses, *kind, bias
