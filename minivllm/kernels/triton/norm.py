"""RMS and layer normalisation in Triton, a program per row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.triton.launch import head_strides, power_of_2


@triton.jit
def norm_kernel(
    out_ptr, x_ptr, residual_ptr, weight_ptr, bias_ptr, eps, heads, x_outer, x_inner, out_outer, out_inner, weight_inner,
    COLS: tl.constexpr, COLS_PAD: tl.constexpr, ADD: tl.constexpr, CENTRED: tl.constexpr, PLUS_ONE: tl.constexpr,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """With ADD, x is added to the residual first, which is stored; residual rows are dense."""
    row = tl.program_id(0).to(tl.int64)
    outer, inner = row // heads, row % heads
    cols = tl.arange(0, COLS_PAD)
    mask = cols < COLS
    x = tl.load(x_ptr + outer * x_outer + inner * x_inner + cols, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        total = (tl.load(residual_ptr + row * COLS + cols, mask=mask, other=0.0).to(tl.float32) + x).to(x_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * COLS + cols, total, mask=mask)
        x = total.to(tl.float32)
    if CENTRED:
        x = tl.where(mask, x - tl.sum(x, 0) / COLS, 0.0)
    x *= tl.rsqrt(tl.sum(x * x, 0) / COLS + eps)
    if not (CENTRED or PLUS_ONE):
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    if WEIGHTED:
        weight = tl.load(weight_ptr + inner * weight_inner + cols, mask=mask, other=0.0).to(tl.float32)
        x *= weight + 1 if PLUS_ONE else weight
    if BIASED:
        x += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + outer * out_outer + inner * out_inner + cols, x.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None, *, plus_one: bool = False) -> Tensor:
    """See reference.norm. x may be a part of a wider tensor, of up to three dimensions."""
    return _launch(x, None, weight, None, eps, out, centred=False, plus_one=plus_one)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """See reference.norm. The residual must be contiguous."""
    return _launch(x, residual, weight, None, eps, None, centred=False, plus_one=plus_one)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, plus_one: bool = False) -> Tensor:
    """See reference.norm."""
    return _launch(x, None, weight, bias, eps, None, centred=True, plus_one=plus_one)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, plus_one: bool = False
) -> Tensor:
    """See reference.norm. The residual must be contiguous."""
    return _launch(x, residual, weight, bias, eps, None, centred=True, plus_one=plus_one)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, out: Tensor | None, *,
    centred: bool, plus_one: bool,
) -> Tensor:  # fmt: skip
    if x.dim() > 3 or x.stride(-1) != 1:
        x = x.contiguous() if x.dim() <= 3 else x.flatten(0, -3).contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    cols = x.shape[-1]
    if out.shape != x.shape or (weight is not None and weight.shape not in (x.shape[-1:], x.shape[-2:])):
        raise ValueError(f"weight or out {list(out.shape)} does not fit x {list(x.shape)}")
    if residual is not None and (residual.shape != x.shape or not residual.is_contiguous()):
        raise ValueError(f"the residual must be contiguous and like x {list(x.shape)}, got {list(residual.shape)}")
    heads, x_outer, x_inner = head_strides(x)
    _, out_outer, out_inner = head_strides(out)
    if x.numel():
        cols_pad = power_of_2(cols)
        norm_kernel[(x.numel() // cols,)](
            out, x, x if residual is None else residual, x if weight is None else weight, x if bias is None else bias, eps,
            heads, x_outer, x_inner, out_outer, out_inner, cols if weight is not None and weight.dim() > 1 else 0,
            cols, cols_pad, residual is not None, centred, plus_one, weight is not None, bias is not None,
            num_warps=min(16, max(1, cols_pad // 512)),
        )  # fmt: skip
    return out
