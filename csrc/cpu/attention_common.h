// What the forms of attention share: masks, reading queries, writing and merging results, and the loop over items.
#pragma once
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr float kHidden = -1e30f;  // score of a masked key; finite, so that a fully masked block gives no NaN

MINIVLLM_INLINE vf cap(vf score, float soft_cap) {
  if (soft_cap == 0.0f) return score;
  return soft_cap * (1.0f - 2.0f / (vexp(score * (2.0f / soft_cap)) + 1.0f));
}

// Keys of an item that a token at `position` sees are [lowest, highest].
MINIVLLM_INLINE long lowest_key(const AttentionArgs& a, long position) {
  return a.window > 0 ? max_of(0, position - a.window + 1) : 0;
}

MINIVLLM_INLINE long highest_key(const AttentionArgs& a, const AttentionItem& item, long position) {
  if (!a.keys) return position;
  const long last = a.query_start[item.seq + 1] - a.query_start[item.seq] - 1;
  return a.window > 0 ? min_of(last, position + a.window - 1) : last;
}

MINIVLLM_INLINE bool needs_mask(const AttentionArgs& a, const AttentionItem& item, long first, long count) {
  const long last_position = item.position + item.token_end - item.token_begin - 1;
  return first + count - 1 > highest_key(a, item, item.position) || first < lowest_key(a, last_position);
}

MINIVLLM_INLINE long item_rows(const AttentionArgs& a, const AttentionItem& item) {
  return item.num_kv_heads * (item.token_end - item.token_begin) * (a.heads / a.kv_heads);
}

// Where the row of an item starts in q or out.
MINIVLLM_INLINE long row_offset(const AttentionArgs& a, const AttentionItem& item, long row, long token_stride) {
  const long group = a.heads / a.kv_heads, tokens = item.token_end - item.token_begin;
  const long kv_head = item.kv_head + row / (tokens * group), token = a.token_order[item.token_begin + row / group % tokens];
  return token * token_stride + (kv_head * group + row % group) * a.head_dim;
}

[[maybe_unused]] MINIVLLM_INLINE long row_position(const AttentionArgs& a, const AttentionItem& item, long row) {
  return item.position + row / (a.heads / a.kv_heads) % (item.token_end - item.token_begin);
}

MINIVLLM_INLINE long row_head(const AttentionArgs& a, const AttentionItem& item, long row) {
  const long group = a.heads / a.kv_heads, tokens = item.token_end - item.token_begin;
  return (item.kv_head + row / (tokens * group)) * group + row % group;
}

// What a row takes off a score per token of distance.
[[maybe_unused]] MINIVLLM_INLINE float row_slope(const AttentionArgs& a, const AttentionItem& item, long row) {
  return a.alibi_slopes ? a.alibi_slopes[row_head(a, item, row)] : 0.0f;
}

// From a key in kv to its value, in elements.
template <class Cache>
[[maybe_unused]] MINIVLLM_INLINE long values_at(const AttentionArgs& a) {
  return a.keys_are_values ? 0 : a.blocks * a.kv_heads * page_size<Cache>(a);
}

template <class T>
static void read_as(const T* from, float* to, long n) {
  for (long i = 0; i < n; i += kLanes) store(to + i, load_n(from + i, min_of(kLanes, n - i)));
}

// One row of q as fp32, padded with zeros to whole vectors.
[[maybe_unused]] static void read_query(const AttentionArgs& a, const AttentionItem& item, long row, float* to) {
  const long offset = row_offset(a, item, row, a.q_stride);
  if (a.dtype == DType::f32) return read_as((const float*)a.q + offset, to, a.head_dim);
  if (a.dtype == DType::bf16) return read_as((const Bf16*)a.q + offset, to, a.head_dim);
  read_as((const F16*)a.q + offset, to, a.head_dim);
}

// acc of one row -> its place in the output, or in the partial results.
static void finish_row(const AttentionArgs& a, const AttentionItem& item, long row, const float* acc, float top, float sum) {
  if (item.partial >= 0) {
    const long head_rows = item_rows(a, item) / item.num_kv_heads;
    float* to = a.partials + (item.partial + row / head_rows * item.head_step + row % head_rows) * (a.head_dim + 2);
    memcpy(to, acc, a.head_dim * sizeof(float));
    to[a.head_dim] = top;
    to[a.head_dim + 1] = sum;
    return;
  }
  if (a.sinks) sum += vexp(splat(a.sinks[row_head(a, item, row)] - top))[0];
  const long offset = row_offset(a, item, row, a.heads * a.head_dim);
  if (a.dtype == DType::f32) return write_as(acc, 1.0f / sum, (float*)a.out + offset, a.head_dim);
  if (a.dtype == DType::bf16) return write_as(acc, 1.0f / sum, (Bf16*)a.out + offset, a.head_dim);
  write_as(acc, 1.0f / sum, (F16*)a.out + offset, a.head_dim);
}

static void merge(const AttentionArgs& a, const AttentionMerge& merge, Scratch& scratch) {
  const AttentionItem whole{0, merge.kv_head, merge.num_kv_heads, merge.token_begin, merge.token_end, 0, 0, 0, -1, 0};
  const long rows = item_rows(a, whole), pitch = a.head_dim + 2, step = merge.split_step * pitch;
  float* acc = scratch.floats(a.head_dim);
  for (long row = 0; row < rows; row++) {
    const float* parts = a.partials + (merge.partial + row) * pitch;
    float top = kHidden, sum = 0;
    for (long s = 0; s < merge.splits; s++) {
      const float part = parts[s * step + a.head_dim];
      top = part > top ? part : top;
    }
    memset(acc, 0, a.head_dim * sizeof(float));
    for (long s = 0; s < merge.splits; s++) {
      const float* part = parts + s * step;
      const float factor = vexp(splat(part[a.head_dim] - top))[0];
      sum += part[a.head_dim + 1] * factor;
      for (long d = 0; d < a.head_dim; d++) acc[d] += part[d] * factor;
    }
    finish_row(a, whole, row, acc, top, sum);
  }
}

static Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Runs the items of a plan on all threads, then the merges.
template <class Attend>
static void run_plan(const AttentionArgs& a, const Attend& attend) {
  parallel_each(a.num_items, [&](long i) { attend(a.items[i], thread_scratch()); });
  parallel_each(a.num_merges, [&](long i) { merge(a, a.merges[i], thread_scratch()); });
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
