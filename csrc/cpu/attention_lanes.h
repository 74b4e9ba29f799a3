// Attention for many rows (prefill): lanes run along rows, keys and values are broadcast, nothing is reduced across lanes.
#pragma once
#include "attention_block.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr int kRowVectors = kLanes == 16 ? 4 : 2;  // accumulators: kRowVectors x kColumns
constexpr int kColumns = kLanes == 16 ? 6 : 4;

// out[c][row] = sum over i of left[i][row] * right(c, i), row by row in vectors; with `scale`, out[c][row] * scale[row] is added.
struct Product {
  const float* left;  // [depth][pitch]
  const float* right;
  long column_step, depth_step;  // of right
  long columns, depth, pitch;
  const float* scale;  // [pitch] or null
  float* out;          // [columns][pitch]

  template <int Columns, int Vectors>
  void block(long column, long row) const {
    float* to = out + column * pitch + row;
    vf sums[Columns][Vectors];
    MINIVLLM_UNROLL for (int c = 0; c < Columns; c++)
      MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++)
        sums[c][v] = scale ? load(to + c * pitch + v * kLanes) * load(scale + row + v * kLanes) : vf{};
    for (long i = 0; i < depth; i++) {
      vf rows[Vectors];
      MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++) rows[v] = load(left + i * pitch + row + v * kLanes);
      MINIVLLM_UNROLL for (int c = 0; c < Columns; c++) {
        const float factor = right[(column + c) * column_step + i * depth_step];
        MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++) sums[c][v] += factor * rows[v];
      }
    }
    MINIVLLM_UNROLL for (int c = 0; c < Columns; c++)
      MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++) store(to + c * pitch + v * kLanes, sums[c][v]);
  }

  template <int Vectors>
  void stripe(long row) const {
    long column = 0;
    for (; column + kColumns <= columns; column += kColumns) block<kColumns, Vectors>(column, row);
    for (; column < columns; column++) block<1, Vectors>(column, row);
  }

  void run() const {
    long row = 0;
    for (; row + kRowVectors * kLanes <= pitch; row += kRowVectors * kLanes) stripe<kRowVectors>(row);
    for (; row < pitch; row += kLanes) stripe<1>(row);
  }
};

template <class Cache>
MINIVLLM_INLINE void widen_rows(const Cache* const* rows, const float* scales, long count, long head_dim, float* out) {
  for (long j = 0; j < count; j++) {
    const float scale = kScaled<Cache> ? scales[j] : 1.0f;
    long d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(out + j * head_dim + d, load(rows[j] + d) * scale);
    if (d < head_dim) store_n(out + j * head_dim + d, load_n(rows[j] + d, head_dim - d) * scale, head_dim - d);
  }
}

// Softmax step of one block, lanes along rows: scores -> weights, new maximum and sum, and the factor for older results.
struct Running {
  float *top, *sum, *scale;
  const float *from, *to;  // first and last visible position of each row
  const float* slope;

  void update(float* scores, long pitch, long first, long count, bool mask, const AttentionArgs& a) const {
    for (long r = 0; r < pitch; r += kLanes) {
      const vf low = load(from + r), high = load(to + r), before = load(top + r);
      vf best = before;
      for (long j = 0; j < count; j++) {
        vf score = cap(load(scores + j * pitch + r) * a.scale, a.soft_cap);
        const vf at = splat((float)(first + j));
        if (a.alibi_slopes) score += load(slope + r) * (at - high);
        if (mask) {
          score = at < low ? splat(kHidden) : score;
          score = at > high ? splat(kHidden) : score;
        }
        best = vmax(best, score);
        store(scores + j * pitch + r, score);
      }
      vf total = {};
      for (long j = 0; j < count; j++) {
        const vf weight = vexp(load(scores + j * pitch + r) - best);
        total += weight;
        store(scores + j * pitch + r, weight);
      }
      const vf factor = vexp(before - best);
      store(scale + r, factor);
      store(sum + r, load(sum + r) * factor + total);
      store(top + r, best);
    }
  }
};

template <class Cache>
static void attend_lanes(const AttentionArgs& a, const AttentionItem& item, long rows, Scratch& scratch) {
  const long pitch = round_up(rows, kLanes), dim = a.head_dim, group = a.heads / a.kv_heads;
  float* q = scratch.floats((2 * dim + kKeys + 6) * pitch + 2 * kKeys * dim + round_up(dim, kLanes));
  float *acc = q + dim * pitch, *scores = acc + dim * pitch, *state = scores + kKeys * pitch;
  float *from = state + 3 * pitch, *to = state + 4 * pitch, *slope = state + 5 * pitch, *wide = slope + pitch, *line = wide + 2 * kKeys * dim;
  const Running running{state, state + pitch, state + 2 * pitch, from, to, slope};
  memset(q, 0, 2 * dim * pitch * sizeof(float));
  for (long r = 0; r < pitch; r++) {
    const long position = item.position + min_of(r, rows - 1) / group;
    running.top[r] = kHidden;
    running.sum[r] = 0;
    from[r] = (float)lowest_key(a, position);
    to[r] = (float)highest_key(a, item, position);
    slope[r] = row_slope(a, item, min_of(r, rows - 1));
    if (r >= rows) continue;
    read_query(a, item, r, line);
    for (long d = 0; d < dim; d++) q[d * pitch + r] = line[d];
  }
  Block<Cache> block;
  for (long key = item.key_begin; key < item.key_end; key += kKeys) {
    block.locate(a, item, key);
    widen_rows(block.keys, block.key_scales, block.count, dim, wide);
    widen_rows(block.values, block.value_scales, block.count, dim, wide + kKeys * dim);
    Product{q, wide, dim, 1, block.count, dim, pitch, nullptr, scores}.run();
    running.update(scores, pitch, key, block.count, needs_mask(a, item, key, block.count), a);
    Product{scores, wide + kKeys * dim, 1, dim, dim, block.count, pitch, running.scale, acc}.run();
  }
  for (long r = 0; r < rows; r++) {
    for (long d = 0; d < dim; d++) line[d] = acc[d * pitch + r];
    finish_row(a, item, r, line, running.top[r], running.sum[r]);
  }
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
