"""KV cache writes in Triton, a program per token."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.triton.launch import power_of_2


@triton.jit
def kv_write_kernel(
    key_ptr, value_ptr, k_ptr, v_ptr, slot_ptr, k_stride, v_stride, k_inverse, v_inverse, limit,
    HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
    SCALED: tl.constexpr, LIMITED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot < 0:
        return
    heads = tl.arange(0, HEADS_PAD)[:, None]
    dims = tl.arange(0, DIM_PAD)[None, :]
    mask = (heads < HEADS) & (dims < DIM)
    read = heads * DIM + dims
    write = ((slot // PAGE * HEADS + heads) * PAGE + slot % PAGE) * DIM + dims
    k = tl.load(k_ptr + token * k_stride + read, mask=mask).to(tl.float32)
    v = tl.load(v_ptr + token * v_stride + read, mask=mask).to(tl.float32)
    if SCALED:
        k *= k_inverse
        v *= v_inverse
    if LIMITED:
        k = tl.minimum(tl.maximum(k, -limit), limit)
        v = tl.minimum(tl.maximum(v, -limit), limit)
    tl.store(key_ptr + write, k.to(key_ptr.dtype.element_ty), mask=mask)
    tl.store(value_ptr + write, v.to(value_ptr.dtype.element_ty), mask=mask)


def write_kv(k: Tensor, v: Tensor, kv: Tensor, slot_mapping: Tensor, *, k_scale: float = 1.0, v_scale: float = 1.0) -> None:
    """See reference.kv_write. Keys and values may be the same memory."""
    num_tokens, heads, dim = k.shape
    page = kv.shape[3]
    if kv.shape[2] != heads or kv.shape[4] != dim or k.stride(1) != dim or v.stride(1) != dim or not kv[0].is_contiguous():
        raise ValueError(f"shapes or strides do not fit: k {list(k.shape)} {k.stride()}, v {v.stride()}, kv {list(kv.shape)}")
    if num_tokens:
        kv_write_kernel[(num_tokens,)](
            kv[0], kv[1], k, v, slot_mapping, k.stride(0), v.stride(0), 1.0 / k_scale, 1.0 / v_scale, torch.finfo(kv.dtype).max,
            heads, power_of_2(heads), dim, power_of_2(dim), page, k_scale != 1.0 or v_scale != 1.0, kv.dtype.itemsize == 1,
            num_warps=4,
        )  # fmt: skip
