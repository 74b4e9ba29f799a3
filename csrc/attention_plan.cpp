#include "plan.h"

#include <algorithm>

namespace minivllm {
namespace {

constexpr int kTileRows = 64;       // query rows (tokens x heads of the group) of one item
constexpr int kSmallestSplit = 256;  // keys; fewer do not pay for merging
constexpr int kItemsPerThread = 4;  // a single item is at most this share of a thread's work

// Work of an item in row-keys; a few rows cost nearly as much as eight, since reading the keys dominates.
long cost(long rows, long keys) { return std::max(rows, 8L) * keys; }

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
      const int position = a.context_lens[seq] - (last - begin);
      const int low = a.window > 0 ? static_cast<int>(std::max(0L, position - a.window + 1)) : 0;
      const int high = position + end - begin;
      for (int head = 0; head < a.kv_heads; head++) plan.items.push_back({seq, head, begin, end, position, low, high, -1});
      total += a.kv_heads * cost((end - begin) * group, high - low);
    }
  }
  if (threads == 1) return plan;

  const long limit = total / (static_cast<long>(threads) * kItemsPerThread) + 1;
  std::vector<AttentionItem> divided;
  divided.reserve(plan.items.size());
  for (AttentionItem item : plan.items) {
    const int rows = (item.token_end - item.token_begin) * group, keys = item.key_end - item.key_begin, first = item.key_begin;
    const int splits = static_cast<int>(std::min<long>((cost(rows, keys) + limit - 1) / limit, keys / kSmallestSplit));
    if (splits < 2) {
      divided.push_back(item);
      continue;
    }
    const int partial = static_cast<int>(plan.partial_rows);
    plan.merges.push_back({item.token_begin, item.token_end, item.kv_head, partial, splits});
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
