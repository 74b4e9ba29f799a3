"""The reference attention itself against torch's scaled_dot_product_attention on contiguous keys with an explicit mask."""

import pytest
import torch
import torch.nn.functional as F

from minivllm.kernels.reference.attention import paged_attention
from minivllm.kernels.reference.kv_write import write_kv


@pytest.mark.parametrize("window", [0, 5, 64])
@pytest.mark.parametrize(
    ("query_len", "context_len", "heads", "kv_heads"),
    [(1, 1, 4, 4), (1, 50, 6, 2), (9, 9, 4, 1), (20, 75, 9, 3), (300, 301, 2, 1)],
)
def test_equals_sdpa(query_len: int, context_len: int, heads: int, kv_heads: int, window: int) -> None:
    torch.manual_seed(0)
    block_size, head_dim = 16, 32
    k, v = torch.randn(2, context_len, kv_heads, head_dim)
    q = torch.randn(query_len, heads, head_dim)
    num_blocks = -(-context_len // block_size)
    table = torch.randperm(num_blocks + 4)[:num_blocks]
    kv = torch.full((2, num_blocks + 4, kv_heads, block_size, head_dim), torch.nan)
    slots = table.repeat_interleave(block_size)[:context_len] * block_size + torch.arange(context_len) % block_size
    write_kv(k, v, kv, slots)

    starts, contexts = torch.tensor([0, query_len], dtype=torch.int32), torch.tensor([context_len], dtype=torch.int32)
    out = paged_attention(q, kv, table[None].int(), starts, contexts, 0.2, sliding_window=window)

    at = torch.arange(context_len - query_len, context_len)[:, None]
    key_at = torch.arange(context_len)[None]
    mask = (key_at <= at) & (key_at > at - (window or context_len))
    expected = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask, scale=0.2, enable_gqa=True
    )
    torch.testing.assert_close(out, expected[0].transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_soft_cap() -> None:
    """Two keys, one query: the weights are those of the capped scores."""
    kv = torch.tensor([[[[[3.0], [-1.0]]]], [[[[1.0], [0.0]]]]])  # [2, 1 block, 1 head, 2 rows, 1 dim]
    table, starts, contexts = torch.tensor([[0]]).int(), torch.tensor([0, 1]).int(), torch.tensor([2]).int()
    out = paged_attention(torch.ones(1, 1, 1), kv, table, starts, contexts, 2.0, soft_cap=4.0)
    capped = 4.0 * torch.tanh(torch.tensor([6.0, -2.0]) / 4.0)
    assert out.item() == pytest.approx(torch.softmax(capped, 0)[0].item(), rel=1e-6)


def test_sinks_and_alibi() -> None:
    """Three keys of two heads, one query: scores less slope times distance; the sink takes its share and gives no value."""
    kv = torch.randn(2, 1, 2, 3, 1)
    table, starts, contexts = torch.tensor([[0]]).int(), torch.tensor([0, 1]).int(), torch.tensor([3]).int()
    slopes, sinks = torch.tensor([0.5, 0.25]), torch.tensor([0.3, -1.0])
    q = torch.ones(1, 2, 1)
    out = paged_attention(q, kv, table, starts, contexts, 2.0, sinks=sinks, alibi_slopes=slopes)
    for head in range(2):
        scores = 2.0 * kv[0, 0, head, :, 0] - slopes[head] * torch.tensor([2.0, 1.0, 0.0])
        weights = torch.cat((scores, sinks[head : head + 1])).softmax(0)[:3]
        assert out[0, head].item() == pytest.approx((weights * kv[1, 0, head, :, 0]).sum().item(), rel=1e-5)
