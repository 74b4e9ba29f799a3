"""Store this step's keys and values in the paged cache."""

from torch import Tensor


def write_kv(k: Tensor, v: Tensor, kv: Tensor, slot_mapping: Tensor) -> None:
    """Write k and v [num_tokens, num_kv_heads, head_dim] into kv [2, num_blocks, num_kv_heads, block_size, head_dim].

    slot_mapping: int64 [num_tokens], block * block_size + offset; a negative slot is skipped (padding).
    """
    block_size = kv.shape[3]
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    blocks, offsets = slots // block_size, slots % block_size
    kv[0, blocks, :, offsets] = k[kept].to(kv.dtype)
    kv[1, blocks, :, offsets] = v[kept].to(kv.dtype)
