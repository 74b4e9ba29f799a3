#include "plan.h"

#include <algorithm>
#include <climits>
#include <cstring>

namespace minivllm {
namespace {

constexpr int kTileRows = 64;          // query rows (tokens x heads of the group) of one item
constexpr int kSmallestSplit = 256;    // keys; fewer do not pay for merging
constexpr int kSmallestShared = 128;   // keys, likewise
constexpr int kSmallestSaving = 512;   // keys that need not be read again, likewise
constexpr int kItemsPerThread = 4;     // a single item is at most this share of a thread's work
constexpr int kFewRows = 16;           // KV heads go together up to so many rows: their keys lie side by side

// Query tokens of one sequence, by their places in token_order, and the keys that they see.
struct Tile {
  int seq, token_begin, token_end;
  int position;  // of the first token
  int key_begin, key_end;
};

// Tiles whose results are merged together: one, or the single tokens of sequences that begin with the same pages. Those keys are
// read once for all.
struct Group {
  Tile shared;         // no keys: none
  size_t first, last;  // tiles
};

class Planner {
 public:
  Planner(const AttentionArgs& args, int threads) : a(args), threads(threads), group(static_cast<int>(a.heads / a.kv_heads)) {}

  AttentionPlan run() {
    std::vector<int> singles;
    const bool all_alike = !a.keys && !a.alibi_slopes && a.window == 0;  // whoever sees a key sees it in the same way
    for (int seq = 0; seq < a.seqs; seq++) {
      if (all_alike && a.query_start[seq + 1] - a.query_start[seq] == 1) {
        singles.push_back(seq);
      } else {
        add_sequence(seq);
      }
    }
    add_singles(singles);
    long total = 0;
    for (const Group& each : groups) total += cost(each.shared);
    for (const Tile& tile : tiles) total += cost(tile);
    limit = threads == 1 ? LONG_MAX : total / (static_cast<long>(threads) * kItemsPerThread) + 1;
    for (const Group& each : groups) divide(each);
    return std::move(plan);
  }

 private:
  // The tiles with the most keys come first, so that the threads finish together.
  void add_sequence(int seq) {
    const int first = a.query_start[seq], last = a.query_start[seq + 1], tile = tokens_of_tile();
    const int offset = static_cast<int>(plan.token_order.size()) - first;
    for (int token = first; token < last; token++) plan.token_order.push_back(token);
    for (int begin = first + (last - first - 1) / tile * tile; begin >= first && first < last; begin -= tile) {
      const int end = std::min(begin + tile, last);
      const int length = a.keys ? last - first : a.context_lens[seq];
      const int position = length - (last - begin), after = position + end - begin;
      const int low = a.window > 0 ? static_cast<int>(std::max(0L, position - a.window + 1)) : 0;
      const int ahead = a.window > 0 ? static_cast<int>(std::min<long>(length, after + a.window - 1)) : length;
      tiles.push_back({seq, begin + offset, end + offset, position, low, a.keys ? ahead : after});
      groups.push_back({{}, tiles.size() - 1, tiles.size()});
    }
  }

  // Sequences of one token each, those that begin alike beside each other.
  void add_singles(std::vector<int>& seqs) {
    std::sort(seqs.begin(), seqs.end(), [&](int one, int other) {
      const int order = std::memcmp(table(one), table(other), sizeof(int32_t) * std::min(pages(one), pages(other)));
      return order != 0 ? order < 0 : pages(one) < pages(other);
    });
    for (size_t first = 0; first < seqs.size();) {
      int shared = 0;  // pages
      size_t last = first + 1;
      for (; last < seqs.size(); last++) {
        const int all = std::min(last == first + 1 ? INT_MAX : shared, pages_in_common(seqs[last - 1], seqs[last]));
        if (static_cast<long>(all) * (last - first) < static_cast<long>(shared) * (last - first - 1) || all == 0) break;
        shared = all;
      }
      const long count = last - first;
      long keys = shared * a.block_size;
      if (keys < kSmallestShared || keys * (count - 1) < kSmallestSaving) keys = 0;
      const long parts = keys > 0 ? (count + tokens_of_tile() - 1) / tokens_of_tile() : count;
      for (long part = 0; part < parts; part++) {
        const int* of_group = seqs.data() + first;
        add_group(of_group + count * part / parts, of_group + count * (part + 1) / parts, static_cast<int>(keys));
      }
      first = last;
    }
  }

  void add_group(const int* begin, const int* end, int shared) {
    const int token = static_cast<int>(plan.token_order.size()), after = token + static_cast<int>(end - begin);
    groups.push_back({{*begin, token, after, shared, 0, shared}, tiles.size(), tiles.size() + (end - begin)});
    for (const int* seq = begin; seq < end; seq++) {
      const int at = static_cast<int>(plan.token_order.size()), length = a.context_lens[*seq];
      tiles.push_back({*seq, at, at + 1, length - 1, shared, length});
      plan.token_order.push_back(a.query_start[*seq]);
    }
  }

  // Items of a group and, where there are several for a row, what merges them. Partial results stand as
  // [splits][kv_heads][tokens of the group][heads of a KV head]: first the shared keys, then each sequence's own.
  void divide(const Group& each) {
    const int token_begin = tiles[each.first].token_begin, token_end = tiles[each.last - 1].token_end;
    const int head_step = (token_end - token_begin) * group, rows = static_cast<int>(a.kv_heads) * head_step;
    const int shared_splits = each.shared.key_end > 0 ? splits_of(each.shared) : 0;
    int splits = 1;
    for (size_t i = each.first; i < each.last; i++) splits = std::max(splits, splits_of(tiles[i]));
    const int all = shared_splits + splits, partial = all > 1 ? static_cast<int>(plan.partial_rows) : -1;
    add_items(each.shared, shared_splits, partial, rows, head_step);
    for (size_t i = each.first; i < each.last; i++) {
      const int at = partial + shared_splits * rows + (tiles[i].token_begin - token_begin) * group;
      add_items(tiles[i], splits, all > 1 ? at : -1, rows, head_step);
    }
    if (all == 1) return;
    const int together = heads_together(tiles[each.first]);
    for (int head = 0; head < a.kv_heads; head += together) {
      const int heads = std::min(together, static_cast<int>(a.kv_heads) - head);
      plan.merges.push_back({token_begin, token_end, head, heads, partial + head * head_step, all, rows});
    }
    plan.partial_rows += static_cast<long>(all) * rows;
  }

  void add_items(const Tile& tile, int splits, int partial, int rows, int head_step) {
    const int together = heads_together(tile), kv_heads = static_cast<int>(a.kv_heads);
    const long keys = tile.key_end - tile.key_begin;
    for (int head = 0; head < kv_heads; head += together) {
      for (int split = 0; split < splits; split++) {
        const int begin = tile.key_begin + static_cast<int>(keys * split / splits);
        const int end = tile.key_begin + static_cast<int>(keys * (split + 1) / splits);
        const int at = partial < 0 ? -1 : partial + split * rows + head * head_step;
        plan.items.push_back({tile.seq, head, std::min(together, kv_heads - head), tile.token_begin, tile.token_end, tile.position,
                              begin, end, at, head_step});
      }
    }
  }

  int splits_of(const Tile& tile) const {
    const long keys = tile.key_end - tile.key_begin, work = cost(tile) / a.kv_heads * heads_together(tile);
    return std::max(1, static_cast<int>(std::min((work - 1) / limit + 1, keys / kSmallestSplit)));
  }

  // Work of a tile in row-keys; a few rows of a KV head cost nearly as much as eight, since reading the keys dominates.
  long cost(const Tile& tile) const {
    const long rows = static_cast<long>(tile.token_end - tile.token_begin) * group;
    return a.kv_heads * std::max(rows, 8L) * (tile.key_end - tile.key_begin);
  }

  // KV heads of an item.
  int heads_together(const Tile& tile) const {
    if (a.seqs < threads * kItemsPerThread) return 1;
    const int rows = std::max(1, tile.token_end - tile.token_begin) * group;
    return std::max(1, std::min(static_cast<int>(a.kv_heads), kFewRows / rows));
  }

  int tokens_of_tile() const { return std::max(1, kTileRows / group); }

  const int32_t* table(int seq) const { return a.block_tables + seq * a.table_stride; }

  // Whole pages before the token of a sequence, which others may have too.
  int pages(int seq) const { return static_cast<int>((a.context_lens[seq] - 1) / a.block_size); }

  int pages_in_common(int one, int other) const {
    const int most = std::min(pages(one), pages(other));
    return static_cast<int>(std::mismatch(table(one), table(one) + most, table(other)).first - table(one));
  }

  const AttentionArgs& a;
  const int threads, group;
  long limit = 0;  // of an item's cost
  std::vector<Tile> tiles;
  std::vector<Group> groups;
  AttentionPlan plan;
};

}  // namespace

AttentionPlan plan_attention(const AttentionArgs& args, int threads) { return Planner(args, threads).run(); }

}  // namespace minivllm
