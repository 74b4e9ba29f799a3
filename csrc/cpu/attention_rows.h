// Attention for few rows (decode): lanes run along head_dim for scores and output, along keys for the softmax.
#pragma once
#include "attention_block.h"

namespace minivllm {
namespace MINIVLLM_ISA {

// scores[row][key] for kLanes keys, lanes along head_dim. q is padded with zeros to a multiple of kLanes.
template <int Rows, class Cache>
static void row_scores(const float* q, long padded, const Cache* const* keys, long count, long head_dim, float* scores) {
  vf products[Rows][kLanes];
  const long whole = head_dim / kLanes * kLanes;
  for (long j = 0; j < kLanes; j++) {
    vf sums[Rows];
    MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) sums[r] = vf{};
    if (j < count) {
      for (long d = 0; d < whole; d += kLanes) {
        const vf key = load(keys[j] + d);
        MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) sums[r] += load(q + r * padded + d) * key;
      }
      if (whole < head_dim) {
        const vf key = load_n(keys[j] + whole, head_dim - whole);
        MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) sums[r] += load(q + r * padded + whole) * key;
      }
    }
    MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) products[r][j] = sums[r];
  }
  MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) store(scores + r * kKeys, reduce_each(products[r]));
}

// acc[row][d] = acc * scale[row] + sum over keys of weight * value, Vectors * kLanes columns.
template <int Rows, int Vectors, class Cache>
MINIVLLM_INLINE void row_output(const float* weights, const float* scale, const Cache* const* values, long count, long d,
                                long padded, float* acc) {
  vf sums[Rows][Vectors];
  MINIVLLM_UNROLL for (int r = 0; r < Rows; r++)
    MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++) sums[r][v] = load(acc + r * padded + d + v * kLanes) * scale[r];
  for (long j = 0; j < count; j++) {
    MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++) {
      const vf value = load(values[j] + d + v * kLanes);
      MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) sums[r][v] += weights[r * kKeys + j] * value;
    }
  }
  MINIVLLM_UNROLL for (int r = 0; r < Rows; r++)
    MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++) store(acc + r * padded + d + v * kLanes, sums[r][v]);
}

template <int Rows, class Cache>
static void row_outputs(const float* weights, const float* scale, const Cache* const* values, long count, long head_dim,
                        long padded, float* acc) {
  constexpr int kVectors = Rows <= 4 ? 2 : 1;
  long d = 0;
  for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) {
    row_output<Rows, kVectors>(weights, scale, values, count, d, padded, acc);
  }
  for (; d + kLanes <= head_dim; d += kLanes) row_output<Rows, 1>(weights, scale, values, count, d, padded, acc);
  for (; d < head_dim; d++) {
    for (int r = 0; r < Rows; r++) {
      float sum = acc[r * padded + d] * scale[r];
      for (long j = 0; j < count; j++) {
        Cache lanes[kLanes] = {values[j][d]};
        sum += weights[r * kKeys + j] * load(lanes)[0];
      }
      acc[r * padded + d] = sum;
    }
  }
}

template <int Rows, class Cache>
static void attend_rows(const AttentionArgs& a, const AttentionItem& item, Scratch& scratch) {
  const long padded = round_up(a.head_dim, kLanes), group = a.heads / a.kv_heads;
  float* q = scratch.floats(2 * Rows * padded);
  float* acc = q + Rows * padded;
  alignas(64) float scores[Rows * kKeys];
  float top[Rows], sum[Rows], scale[Rows];
  memset(acc, 0, Rows * padded * sizeof(float));
  for (int r = 0; r < Rows; r++) {
    read_query(a, item, r, q + r * padded);
    top[r] = kHidden;
    sum[r] = 0;
  }
  vf lane;
  for (int i = 0; i < kLanes; i++) lane[i] = (float)i;
  Block<Cache> block;
  for (long key = item.key_begin; key < item.key_end; key += kKeys) {
    block.locate(a, item, key);
    const long vectors = round_up(block.count, kLanes);
    for (long j = 0; j < vectors; j += kLanes) {
      row_scores<Rows>(q, padded, block.keys + j, min_of(kLanes, block.count - j), a.head_dim, scores + j);
    }
    for (int r = 0; r < Rows; r++) {
      float* row = scores + r * kKeys;
      const long position = item.position + r / group;
      const float from = (float)(lowest_key(a, position) - key), to = (float)min_of(block.count - 1, highest_key(a, item, position) - key);
      const float slope = row_slope(a, item, r);
      vf highest = splat(top[r]);
      for (long j = 0; j < vectors; j += kLanes) {
        const vf at = lane + (float)j;
        vf score = load(row + j) * a.scale;
        if constexpr (kScaled<Cache>) score *= load(block.key_scales + j);
        score = cap(score, a.soft_cap) + slope * (at + (float)(key - position));
        score = at < from ? splat(kHidden) : score;
        score = at > to ? splat(kHidden) : score;
        highest = vmax(highest, score);
        store(row + j, score);
      }
      const float best = reduce_max(highest);
      vf total = {};
      for (long j = 0; j < vectors; j += kLanes) {
        vf weight = vexp(load(row + j) - best);
        weight = lane + (float)j >= (float)block.count ? vf{} : weight;
        total += weight;
        if constexpr (kScaled<Cache>) weight *= load(block.value_scales + j);
        store(row + j, weight);
      }
      scale[r] = vexp(splat(top[r] - best))[0];
      sum[r] = sum[r] * scale[r] + reduce_add(total);
      top[r] = best;
    }
    row_outputs<Rows>(scores, scale, block.values, block.count, a.head_dim, padded, acc);
  }
  for (int r = 0; r < Rows; r++) finish_row(a, item, r, acc + r * padded, top[r], sum[r]);
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
