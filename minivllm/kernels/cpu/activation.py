"""Activations on the compiled kernels."""

from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES, output
from minivllm.kernels.reference import activation as reference

# As `Gate` in csrc/include/kernels.h.
_SILU, _GELU_TANH, _GELU_ERF = 0, 1, 2
# As `Act` there.
_ACTS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3, "relu2": 4}


def silu_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """See reference.activation."""
    if not _covers(x):
        return reference.silu_and_mul(x, out)
    return _gate(x, out, _SILU)


def gelu_and_mul(x: Tensor, out: Tensor | None = None, *, approximate: str = "tanh") -> Tensor:
    """See reference.activation."""
    if not _covers(x):
        return reference.gelu_and_mul(x, out, approximate=approximate)
    return _gate(x, out, _GELU_TANH if approximate == "tanh" else _GELU_ERF)


def activate(x: Tensor, kind: str) -> Tensor:
    """See reference.activation."""
    if not _covers(x) or kind not in _ACTS:
        return reference.activate(x, kind)
    out = output(None, x, x.shape)
    cols = x.shape[-1]
    call(_cpu.act, x.numel() // cols, DTYPES[x.dtype], x, out, cols, _ACTS[kind])
    return out


def _covers(x: Tensor) -> bool:
    return x.dtype in DTYPES and x.is_contiguous()


def _gate(x: Tensor, out: Tensor | None, kind: int) -> Tensor:
    cols = x.shape[-1] // 2
    out = output(out, x, (*x.shape[:-1], cols))
    call(_cpu.gate, x.numel() // (2 * cols), DTYPES[x.dtype], x, out, cols, kind)
    return out
