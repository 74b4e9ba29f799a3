"""Store this step's keys and values in the paged cache."""

import torch
from torch import Tensor


def write_kv(k: Tensor, v: Tensor, kv: Tensor, slot_mapping: Tensor, *, k_scale: float = 1.0, v_scale: float = 1.0) -> None:
    """Write k and v [num_tokens, num_kv_heads, head_dim] into kv [2, num_blocks, num_kv_heads, block_size, head_dim].

    slot_mapping: int64 [num_tokens], block * block_size + offset; a negative slot is skipped (padding). The cache gets
    k / k_scale and v / v_scale, in 8 bits the nearest number that it can hold.
    """
    block_size = kv.shape[3]
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    blocks, offsets = slots // block_size, slots % block_size
    kv[0, blocks, :, offsets] = _cast(k[kept], k_scale, kv.dtype)
    kv[1, blocks, :, offsets] = _cast(v[kept], v_scale, kv.dtype)


def _cast(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    if scale != 1.0:
        x = x.float() / scale
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        x = x.float().clamp(-limit, limit)
    return x.to(dtype)
