"""Activations in Triton, with and without a gate."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minivllm.kernels.triton.launch import power_of_2

_BLOCK = 1024
_FORMS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3, "relu2": 4}


@triton.jit
def _activated(x, FORM: tl.constexpr):
    if FORM == 0:
        x = x * tl.sigmoid(x)
    elif FORM == 1:  # 0.5 x (1 + tanh(u)) = x sigmoid(2 u)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif FORM == 2:
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    else:
        x = tl.maximum(x, 0.0)
        if FORM == 4:
            x = x * x
    return x


@triton.jit
def activation_kernel(
    out_ptr, x_ptr, x_stride, limit, COLS: tl.constexpr, BLOCK: tl.constexpr, FORM: tl.constexpr, GATED: tl.constexpr,
    LIMITED: tl.constexpr,
):  # fmt: skip
    """Grid: rows, blocks of columns. With GATED, a row of x is gate, then up; LIMITED: see gate_with_limit."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < COLS
    dtype = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
    if LIMITED:
        up = tl.load(x_ptr + row * x_stride + COLS + cols, mask=mask, other=0.0).to(tl.float32)
        x = tl.minimum(x, limit)
        x = x * tl.sigmoid(1.702 * x) * (tl.minimum(tl.maximum(up, -limit), limit) + 1)
    elif GATED:
        up = tl.load(x_ptr + row * x_stride + COLS + cols, mask=mask, other=0.0)
        x = _activated(x, FORM).to(dtype).to(tl.float32) * up.to(tl.float32)
    else:
        x = _activated(x, FORM)
    tl.store(out_ptr + row * COLS + cols, x.to(dtype), mask=mask)


def silu_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """See reference.activation."""
    return _launch(x, out, "silu", gated=True)


def gelu_and_mul(x: Tensor, out: Tensor | None = None, *, approximate: str = "tanh") -> Tensor:
    """See reference.activation."""
    return _launch(x, out, "gelu_tanh" if approximate == "tanh" else "gelu", gated=True)


def activate(x: Tensor, kind: str) -> Tensor:
    """See reference.activation."""
    return _launch(x, None, kind, gated=False)


def gate_with_limit(x: Tensor, limit: float) -> Tensor:
    """The gate of gpt-oss's experts, as reference.moe has it."""
    return _launch(x, None, "silu", gated=True, limit=limit)


def _launch(x: Tensor, out: Tensor | None, form: str, *, gated: bool, limit: float = 0.0) -> Tensor:
    cols = x.shape[-1] // 2 if gated else x.shape[-1]
    out = torch.empty((*x.shape[:-1], cols), dtype=x.dtype, device=x.device) if out is None else out
    if not out.is_contiguous():
        raise ValueError(f"out must be contiguous, got {list(out.shape)} {out.stride()}")
    if x.numel():
        rows = x.reshape(-1, x.shape[-1])
        block = min(_BLOCK, power_of_2(cols))
        activation_kernel[(rows.shape[0], triton.cdiv(cols, block))](
            out, rows, rows.stride(0), float(limit), cols, block, _FORMS[form], gated, limit > 0, num_warps=max(1, block // 256)
        )  # fmt: skip
    return out
