"""Store this step's keys and values in the paged cache."""

import torch
from torch import Tensor

from minivllm.kernels.kv_pages import parts

_SMALLEST = 1e-30  # that the greatest number of a row counts as, so that a row of zeros has a scale


def write_kv(k: Tensor, v: Tensor, kv: Tensor, slot_mapping: Tensor, *, k_scale: float = 1.0, v_scale: float = 1.0) -> None:
    """Write k and v [num_tokens, num_kv_heads, head_dim] into kv (see kernels.kv_pages).


    slot_mapping: int64 [num_tokens], block * block_size + offset; a negative slot is skipped (padding). The cache gets
    k / k_scale and v / v_scale, in 8 bits the nearest number that it can hold.
    """
    block_size = kv.shape[3]
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    blocks, offsets = slots // block_size, slots % block_size
    for cache, new, scale in zip(kv, (k[kept], v[kept]), (k_scale, v_scale), strict=True):
        if kv.dtype == torch.int8:
            rows, scales = parts(cache)
            new = new.float() / scale
            top = new.abs().amax(-1, keepdim=True).clamp_min(_SMALLEST)
            factor = top.new_tensor(127) / top  # a plain 127 would be multiplied by the reciprocal
            rows[blocks, :, offsets] = (new * factor).round().to(torch.int8)
            scales[blocks, :, offsets] = (top / 127).view(torch.int8)
        else:
            cache[blocks, :, offsets] = _cast(new, scale, kv.dtype)


def _cast(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    if scale != 1.0:
        x = x.float() / scale
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        x = x.float().clamp(-limit, limit)
    return x.to(dtype)
