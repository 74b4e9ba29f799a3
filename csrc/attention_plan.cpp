#include "plan.h"

#include <algorithm>

namespace minivllm {
namespace {

constexpr int kTileRows = 64;       // query rows (tokens x heads of the group) of one item
constexpr int kSmallestSplit = 256;  // keys; fewer do not pay for merging
constexpr int kItemsPerThread = 4;  // a single item is at most this share of a thread's work

constexpr int kFewRows = 16;       // KV heads go together up to so many rows: their keys lie side by side

// Work of an item in row-keys; a few rows of a KV head cost nearly as much as eight, since reading the keys dominates.
long cost(const AttentionItem& item, int group) {
  const long rows = (item.token_end - item.token_begin) * group;
  return item.num_kv_heads * std::max(rows, 8L) * (item.key_end - item.key_begin);
}

// KV heads of an item with so many query tokens.
int heads_together(const AttentionArgs& a, int threads, int tokens) {
  if (a.seqs < threads * kItemsPerThread) return 1;
  const int rows = tokens * static_cast<int>(a.heads / a.kv_heads);
  return std::max(1, std::min(static_cast<int>(a.kv_heads), kFewRows / rows));
}

}  // namespace

AttentionPlan plan_attention(const AttentionArgs& a, int threads) {
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const int tile = std::max(1, kTileRows / group);
  AttentionPlan plan;
  long total = 0;
  for (int seq = 0; seq < a.seqs; seq++) {
    const int first = a.query_start[seq], last = a.query_start[seq + 1];
    // The tiles with the most keys come first, so that the threads finish together.
    for (int begin = first + (last - first - 1) / tile * tile; begin >= first && first < last; begin -= tile) {
      const int end = std::min(begin + tile, last);
      const int length = a.keys ? last - first : a.context_lens[seq];
      const int position = length - (last - begin), after = position + end - begin;
      const int low = a.window > 0 ? static_cast<int>(std::max(0L, position - a.window + 1)) : 0;
      const int ahead = a.window > 0 ? static_cast<int>(std::min<long>(length, after + a.window - 1)) : length;
      const int high = a.keys ? ahead : after;
      const int kv_heads = static_cast<int>(a.kv_heads), together = heads_together(a, threads, end - begin);
      for (int head = 0; head < kv_heads; head += together) {
        plan.items.push_back({seq, head, std::min(together, kv_heads - head), begin, end, position, low, high, -1});
        total += cost(plan.items.back(), group);
      }
    }
  }
  if (threads == 1) return plan;

  const long limit = total / (static_cast<long>(threads) * kItemsPerThread) + 1;
  std::vector<AttentionItem> divided;
  divided.reserve(plan.items.size());
  for (AttentionItem item : plan.items) {
    const int rows = item.num_kv_heads * (item.token_end - item.token_begin) * group;
    const int keys = item.key_end - item.key_begin, first = item.key_begin;
    const int splits = static_cast<int>(std::min<long>((cost(item, group) + limit - 1) / limit, keys / kSmallestSplit));
    if (splits < 2) {
      divided.push_back(item);
      continue;
    }
    const int partial = static_cast<int>(plan.partial_rows);
    plan.merges.push_back({item.token_begin, item.token_end, item.kv_head, item.num_kv_heads, partial, splits});
    for (int split = 0; split < splits; split++) {
      item.key_begin = first + static_cast<int>(static_cast<long>(keys) * split / splits);
      item.key_end = first + static_cast<int>(static_cast<long>(keys) * (split + 1) / splits);
      item.partial = partial + split * rows;
      divided.push_back(item);
    }
    plan.partial_rows += static_cast<long>(splits) * rows;
  }
  plan.items = std::move(divided);
  return plan;
}

}  // namespace minivllm
