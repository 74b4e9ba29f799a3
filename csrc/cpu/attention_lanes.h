// Attention for many rows (prefill): lanes run along rows, keys and values are broadcast, nothing is reduced across lanes.
#pragma once
#include "attention_block.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr int kRowVectors = kLanes == 16 ? 4 : 2;  // accumulators: kRowVectors x kColumns
constexpr int kColumns = kLanes == 16 ? 6 : 4;

// out[c][rows] = sum over i of left[i][rows] * right(c, i) for Columns values of c; out * scale is added if scale is given.
template <int Columns, int Vectors>
static void tile_product(const float* left, long pitch, const float* right, long column_step, long step, long depth, const float* scale, float* out) {
  vf sums[Columns][Vectors];
  MINIVLLM_UNROLL for (int c = 0; c < Columns; c++)
    MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++)
      sums[c][v] = scale ? load(out + c * pitch + v * kLanes) * load(scale + v * kLanes) : vf{};
  for (long i = 0; i < depth; i++) {
    vf rows[Vectors];
    MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++) rows[v] = load(left + i * pitch + v * kLanes);
    MINIVLLM_UNROLL for (int c = 0; c < Columns; c++) {
      const float factor = right[c * column_step + i * step];
      MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++) sums[c][v] += factor * rows[v];
    }
  }
  MINIVLLM_UNROLL for (int c = 0; c < Columns; c++)
    MINIVLLM_UNROLL for (int v = 0; v < Vectors; v++) store(out + c * pitch + v * kLanes, sums[c][v]);
}

template <int Vectors>
static void tile_columns(const float* left, long pitch, const float* right, long column_step, long step, long columns, long depth, const float* scale, float* out) {
  long c = 0;
  for (; c + kColumns <= columns; c += kColumns) {
    tile_product<kColumns, Vectors>(left, pitch, right + c * column_step, column_step, step, depth, scale, out + c * pitch);
  }
  for (; c < columns; c++) tile_product<1, Vectors>(left, pitch, right + c * column_step, column_step, step, depth, scale, out + c * pitch);
}

static void tile_rows(const float* left, long pitch, const float* right, long column_step, long step, long columns, long depth, const float* scale, float* out) {
  long r = 0;
  for (; r + kRowVectors * kLanes <= pitch; r += kRowVectors * kLanes) {
    tile_columns<kRowVectors>(left + r, pitch, right, column_step, step, columns, depth, scale ? scale + r : nullptr, out + r);
  }
  for (; r < pitch; r += kLanes) {
    tile_columns<1>(left + r, pitch, right, column_step, step, columns, depth, scale ? scale + r : nullptr, out + r);
  }
}

template <class Cache>
MINIVLLM_INLINE void widen_rows(const Cache* const* rows, long count, long head_dim, float* out) {
  for (long j = 0; j < count; j++) {
    long d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(out + j * head_dim + d, load(rows[j] + d));
    if (d < head_dim) store_n(out + j * head_dim + d, load_n(rows[j] + d, head_dim - d), head_dim - d);
  }
}

// Softmax step of one block, lanes along rows: scores -> weights, new maximum and sum, and the factor for older results.
struct Running {
  float *top, *sum, *scale;
  const float *from, *to;  // first and last visible position of each row

  void update(float* scores, long pitch, long first, long count, bool mask, const AttentionArgs& a) const {
    for (long r = 0; r < pitch; r += kLanes) {
      const vf low = load(from + r), high = load(to + r), before = load(top + r);
      vf best = before;
      for (long j = 0; j < count; j++) {
        vf score = cap(load(scores + j * pitch + r) * a.scale, a.soft_cap);
        if (mask) {
          const vf at = splat((float)(first + j));
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
static void attend_tile(const AttentionArgs& a, const AttentionItem& item, long rows, Scratch& scratch) {
  const long pitch = round_up(rows, kLanes), dim = a.head_dim, group = a.heads / a.kv_heads;
  float* q = scratch.floats(2 * dim * pitch + kKeys * pitch + 2 * kKeys * round_up(dim, kLanes) + 5 * pitch + round_up(dim, kLanes));
  float *acc = q + dim * pitch, *scores = acc + dim * pitch, *state = scores + kKeys * pitch;
  float *from = state + 3 * pitch, *to = state + 4 * pitch, *wide = state + 5 * pitch, *line = wide + 2 * kKeys * dim;
  const Running running{state, state + pitch, state + 2 * pitch, from, to};
  memset(q, 0, 2 * dim * pitch * sizeof(float));
  for (long r = 0; r < pitch; r++) {
    const long position = item.position + min_of(r, rows - 1) / group;
    running.top[r] = kHidden;
    running.sum[r] = 0;
    from[r] = (float)lowest_key(a, position);
    to[r] = (float)position;
    if (r >= rows) continue;
    read_query(a, item, r, line);
    for (long d = 0; d < dim; d++) q[d * pitch + r] = line[d];
  }
  Block<Cache> block;
  for (long key = item.key_begin; key < item.key_end; key += kKeys) {
    block.locate(a, item, key);
    widen_rows(block.keys, block.count, dim, wide);
    widen_rows(block.values, block.count, dim, wide + kKeys * dim);
    tile_rows(q, pitch, wide, dim, 1, block.count, dim, nullptr, scores);
    running.update(scores, pitch, key, block.count, needs_mask(a, item, key, block.count), a);
    tile_rows(scores, pitch, wide + kKeys * dim, 1, dim, dim, block.count, running.scale, acc);
  }
  for (long r = 0; r < rows; r++) {
    for (long d = 0; d < dim; d++) line[d] = acc[d * pitch + r];
    finish_row(a, item, r, line, running.top[r], running.sum[r]);
  }
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
