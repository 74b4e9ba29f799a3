"""Repairs of Triton's interpreter, which computes with the bits of a bfloat16 and truncates where devices round."""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

_TORCH = {
    tl.float16: torch.float16,
    tl.float32: torch.float32,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_NARROW = (tl.bfloat16, tl.float8e4nv, tl.float8e5)  # held as integers


def repair() -> None:
    """Before the first kernel runs."""
    builder: Any = interpreter.InterpreterBuilder
    create_dot, cast, patch_tensor = builder.create_dot, builder.cast_impl, interpreter._patch_lang_tensor

    def convert(data: np.ndarray, source: tl.dtype, target: tl.dtype, rounding: object) -> np.ndarray:
        of, to = _TORCH[source.scalar], _TORCH[target.scalar]
        tensor = torch.from_numpy(np.ascontiguousarray(data)).view(of)
        bits = tensor.to(to).view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[to.itemsize]).numpy()
        return bits.view(f"uint{8 * to.itemsize}").reshape(data.shape)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        of, to = source.dtype.scalar, target.scalar
        if of in _TORCH and to in _TORCH and (of in _NARROW or to in _NARROW):
            return interpreter.TensorHandle(convert(source.data, of, to, None).view(interpreter._get_np_dtype(to)), to)
        return cast(self, source, target)

    def widened(handle: Any) -> Any:
        return cast_impl(None, handle, tl.float32) if handle.dtype.scalar in _NARROW else handle

    def index(tensor: type, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))  # numpy 2.4 wants it said

    interpreter._convert_float = convert
    interpreter._patch_lang_tensor = index
    builder.cast_impl = cast_impl
    builder.create_dot = lambda self, a, b, *rest: create_dot(self, widened(a), widened(b), *rest)
