"""Rotary position embedding in Triton, a program per token."""

import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.triton.launch import power_of_2


@triton.jit
def _turn(x_ptr, head_stride, cos, sin, HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, HALF: tl.constexpr,
          HALF_PAD: tl.constexpr, INTERLEAVED: tl.constexpr):  # fmt: skip
    heads = tl.arange(0, HEADS_PAD)[:, None]
    pair = tl.arange(0, HALF_PAD)[None, :]
    mask = (heads < HEADS) & (pair < HALF)
    first_ptrs = x_ptr + heads * head_stride + (2 * pair if INTERLEAVED else pair)
    second_ptrs = first_ptrs + (1 if INTERLEAVED else HALF)
    first = tl.load(first_ptrs, mask=mask).to(tl.float32)
    second = tl.load(second_ptrs, mask=mask).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    # Each product is rounded by itself, as torch's are.
    left = (first * cos).to(dtype).to(tl.float32) - (second * sin).to(dtype).to(tl.float32)
    right = (second * cos).to(dtype).to(tl.float32) + (first * sin).to(dtype).to(tl.float32)
    tl.store(first_ptrs, left.to(dtype), mask=mask)
    tl.store(second_ptrs, right.to(dtype), mask=mask)


@triton.jit
def rotary_kernel(
    q_ptr, k_ptr, position_ptr, table_ptr, q_stride, k_stride, q_head_stride, k_head_stride, Q_HEADS: tl.constexpr,
    Q_PAD: tl.constexpr, K_HEADS: tl.constexpr, K_PAD: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, HALF_PAD)
    dtype = q_ptr.dtype.element_ty
    angles = table_ptr + tl.load(position_ptr + token) * (2 * HALF) + pair
    cos = tl.load(angles, mask=pair < HALF).to(dtype).to(tl.float32)[None, :]
    sin = tl.load(angles + HALF, mask=pair < HALF).to(dtype).to(tl.float32)[None, :]
    _turn(q_ptr + token * q_stride, q_head_stride, cos, sin, Q_HEADS, Q_PAD, HALF, HALF_PAD, INTERLEAVED)
    _turn(k_ptr + token * k_stride, k_head_stride, cos, sin, K_HEADS, K_PAD, HALF, HALF_PAD, INTERLEAVED)


def apply_rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, *, interleaved: bool = False) -> None:
    """See reference.rotary."""
    num_tokens, q_heads, dim = q.shape
    k_heads, half = k.shape[1], cos_sin.shape[1] // 2
    if q.stride(2) != 1 or k.stride(2) != 1 or k.shape[2] != dim or not cos_sin.is_contiguous():
        raise ValueError(f"shapes or strides do not fit: q {list(q.shape)} {q.stride()}, k {list(k.shape)} {k.stride()}")
    if num_tokens:
        q_pad, half_pad = power_of_2(q_heads), power_of_2(half)
        rotary_kernel[(num_tokens,)](
            q, k, positions, cos_sin, q.stride(0), k.stride(0), q.stride(1), k.stride(1), q_heads, q_pad, k_heads,
            power_of_2(k_heads), half, half_pad, interleaved, num_warps=min(8, max(1, q_pad * half_pad // 512)),
        )  # fmt: skip
