"""RMS and layer normalisation on the compiled kernels."""

from torch import Tensor

from minivllm import _cpu
from minivllm.kernels.cpu.recording import call
from minivllm.kernels.cpu.tensors import DTYPES, has_dense_rows, output
from minivllm.kernels.reference import norm as reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None, *, plus_one: bool = False) -> Tensor:
    """See reference.norm."""
    if not _covers(x, weight, None):
        return reference.rms_norm(x, weight, eps, out, plus_one=plus_one)
    return _norm(x, None, weight, None, eps, output(out, x, x.shape), centred=False, plus_one=plus_one)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """See reference.norm."""
    if not _covers(x, weight, None) or not _fits(x, residual):
        return reference.add_rms_norm(x, residual, weight, eps, plus_one=plus_one)
    return _norm(x, residual, weight, None, eps, output(None, x, x.shape), centred=False, plus_one=plus_one)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, plus_one: bool = False) -> Tensor:
    """See reference.norm."""
    if not _covers(x, weight, bias):
        return reference.layer_norm(x, weight, bias, eps, plus_one=plus_one)
    return _norm(x, None, weight, bias, eps, output(None, x, x.shape), centred=True, plus_one=plus_one)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, plus_one: bool = False
) -> Tensor:
    """See reference.norm."""
    if not _covers(x, weight, bias) or not _fits(x, residual):
        return reference.add_layer_norm(x, residual, weight, bias, eps, plus_one=plus_one)
    return _norm(x, residual, weight, bias, eps, output(None, x, x.shape), centred=True, plus_one=plus_one)


def _covers(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and vector.shape not in (x.shape[-1:], x.shape[1:]):
            raise ValueError(f"{name} {list(vector.shape)} does not fit x {list(x.shape)}")
    vectors = [vector for vector in (weight, bias) if vector is not None]
    dense = x.is_contiguous() or (x.dim() == 3 and has_dense_rows(x)) or (x.dim() == 2 and x.stride(1) == 1)
    return x.dtype in DTYPES and dense and all(v.dtype == x.dtype and v.is_contiguous() for v in vectors)


def _fits(x: Tensor, residual: Tensor) -> bool:
    if residual.shape != x.shape:
        raise ValueError(f"residual {list(residual.shape)} and x {list(x.shape)} must have the same shape")
    return residual.dtype == x.dtype and residual.is_contiguous() and x.is_contiguous()


def _norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, out: Tensor, *, centred: bool,
    plus_one: bool,
) -> Tensor:  # fmt: skip
    cols = x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    stride = x.stride(0) if x.dim() in (2, 3) else cols
    call(
        _cpu.norm, x.numel() // cols, DTYPES[x.dtype], x, residual, weight, bias, out, cols, eps, heads, stride, centred,
        plus_one, weight is not None and weight.dim() == 2,
    )  # fmt: skip
    return out
