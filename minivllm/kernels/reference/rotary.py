"""Rotary position embedding, in place."""

from torch import Tensor


def apply_rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, *, interleaved: bool = False) -> None:
    """Rotate the first rotary_dim elements of every head of q and k by the angle of its position.

    q, k: [num_tokens, heads, head_dim], rows may be strided (slices of one packed qkv); positions: int64 [num_tokens];
    cos_sin: fp32 [max_position, rotary_dim], first half cosines, second half sines. Pairs are (i, i + rotary_dim / 2), or
    (2i, 2i + 1) if interleaved. Angles and products are rounded to q.dtype, as transformers does.
    """
    cos, sin = cos_sin[positions].to(q.dtype).unsqueeze(1).chunk(2, dim=-1)  # [num_tokens, 1, rotary_dim / 2]
    for x in (q, k):
        rotated = x[..., : cos_sin.shape[1]]
        first, second = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, dim=-1)
        turned = first * cos - second * sin, second * cos + first * sin
        first.copy_(turned[0])
        second.copy_(turned[1])
