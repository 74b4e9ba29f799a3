// Causal attention over the paged cache: prefill, chunked prefill and decode alike, in blocks of keys with a running softmax.
//
// An item (see kernels.h) has rows = query tokens x heads of one KV head. Two forms:
//   rows <= half a vector (decode): lanes run along head_dim for the scores and the output, along keys for the softmax;
//   more rows (prefill): lanes run along rows everywhere, keys and values are broadcast, nothing is reduced across lanes.
#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long kKeys = 64;         // keys per block
constexpr float kHidden = -1e30f;  // score of a masked key; finite, so that a fully masked block gives no NaN

template <class Cache>
struct Block {
  const Cache* keys[kKeys];
  const Cache* values[kKeys];
  long first, count;  // position of the first key

  void locate(const AttentionArgs& a, const AttentionItem& item, long key) {
    first = key;
    count = min_of(kKeys, item.key_end - key);
    const long values_at = a.blocks * a.kv_heads * a.block_size * a.head_dim;
    const int32_t* table = a.block_tables + item.seq * a.table_stride;
    for (long i = 0; i < count;) {
      const long page = (key + i) / a.block_size, offset = (key + i) % a.block_size;
      const Cache* row = (const Cache*)a.kv + ((table[page] * a.kv_heads + item.kv_head) * a.block_size + offset) * a.head_dim;
      const long run = min_of(a.block_size - offset, count - i);
      for (long j = 0; j < run; j++, i++, row += a.head_dim) keys[i] = row, values[i] = row + values_at;
    }
  }
};

MINIVLLM_INLINE vf cap(vf score, float soft_cap) {
  if (soft_cap == 0.0f) return score;
  return soft_cap * (1.0f - 2.0f / (vexp(score * (2.0f / soft_cap)) + 1.0f));
}

// Keys of an item that a token at `position` sees are [low, position].
MINIVLLM_INLINE long lowest_key(const AttentionArgs& a, long position) {
  return a.window > 0 ? max_of(0, position - a.window + 1) : 0;
}

MINIVLLM_INLINE bool needs_mask(const AttentionArgs& a, const AttentionItem& item, long first, long count) {
  const long last_position = item.position + item.token_end - item.token_begin - 1;
  return first + count - 1 > item.position || first < lowest_key(a, last_position);
}

// Where the row of an item (query token, head) starts in q or out.
MINIVLLM_INLINE long row_offset(const AttentionArgs& a, const AttentionItem& item, long row, long token_stride) {
  const long group = a.heads / a.kv_heads;
  return (item.token_begin + row / group) * token_stride + (item.kv_head * group + row % group) * a.head_dim;
}

template <class T>
static void read_as(const T* from, float* to, long n) {
  for (long i = 0; i < n; i += kLanes) store(to + i, load_n(from + i, min_of(kLanes, n - i)));
}

// One row of q as fp32, padded with zeros to whole vectors.
static void read_query(const AttentionArgs& a, const AttentionItem& item, long row, float* to) {
  const long offset = row_offset(a, item, row, a.q_stride);
  if (a.dtype == DType::f32) return read_as((const float*)a.q + offset, to, a.head_dim);
  if (a.dtype == DType::bf16) return read_as((const Bf16*)a.q + offset, to, a.head_dim);
  read_as((const F16*)a.q + offset, to, a.head_dim);
}

template <class T>
static void write_as(const float* from, float factor, T* to, long n) {
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i) * factor);
  if (i < n) store_n(to + i, load_n(from + i, n - i) * factor, n - i);
}

// acc of one row -> its place in the output, or in the partial results.
static void finish_row(const AttentionArgs& a, const AttentionItem& item, long row, const float* acc, float top, float sum) {
  if (item.partial >= 0) {
    float* to = a.partials + (item.partial + row) * (a.head_dim + 2);
    memcpy(to, acc, a.head_dim * sizeof(float));
    to[a.head_dim] = top;
    to[a.head_dim + 1] = sum;
    return;
  }
  const long offset = row_offset(a, item, row, a.heads * a.head_dim);
  if (a.dtype == DType::f32) return write_as(acc, 1.0f / sum, (float*)a.out + offset, a.head_dim);
  if (a.dtype == DType::bf16) return write_as(acc, 1.0f / sum, (Bf16*)a.out + offset, a.head_dim);
  write_as(acc, 1.0f / sum, (F16*)a.out + offset, a.head_dim);
}

// ---- few rows

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
MINIVLLM_INLINE void row_output(const float* weights, const float* scale, const Cache* const* values, long count, long d, long padded, float* acc) {
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
static void row_outputs(const float* weights, const float* scale, const Cache* const* values, long count, long head_dim, long padded, float* acc) {
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
      const float from = (float)(lowest_key(a, position) - key), to = (float)min_of(block.count - 1, position - key);
      vf highest = splat(top[r]);
      for (long j = 0; j < vectors; j += kLanes) {
        const vf at = lane + (float)j;
        vf score = cap(load(row + j) * a.scale, a.soft_cap);
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

// ---- many rows

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

// ---- items and merges

template <class Cache>
static void attend(const AttentionArgs& a, const AttentionItem& item, Scratch& scratch) {
  const long rows = (item.token_end - item.token_begin) * (a.heads / a.kv_heads);
  if constexpr (kLanes >= 16) {
    switch (rows) {
      case 5: return attend_rows<5, Cache>(a, item, scratch);
      case 6: return attend_rows<6, Cache>(a, item, scratch);
      case 7: return attend_rows<7, Cache>(a, item, scratch);
      case 8: return attend_rows<8, Cache>(a, item, scratch);
    }
  }
  if constexpr (kLanes >= 8) {
    if (rows == 3) return attend_rows<3, Cache>(a, item, scratch);
    if (rows == 4) return attend_rows<4, Cache>(a, item, scratch);
  }
  if (rows == 1) return attend_rows<1, Cache>(a, item, scratch);
  if (rows == 2) return attend_rows<2, Cache>(a, item, scratch);
  attend_tile<Cache>(a, item, rows, scratch);
}

static void merge(const AttentionArgs& a, const AttentionMerge& merge, Scratch& scratch) {
  const long rows = (merge.token_end - merge.token_begin) * (a.heads / a.kv_heads), pitch = a.head_dim + 2;
  const AttentionItem whole{0, merge.kv_head, merge.token_begin, merge.token_end, 0, 0, 0, -1};
  float* acc = scratch.floats(a.head_dim);
  for (long row = 0; row < rows; row++) {
    const float* parts = a.partials + (merge.partial + row) * pitch;
    float top = kHidden, sum = 0;
    for (long s = 0; s < merge.splits; s++) {
      const float part = parts[s * rows * pitch + a.head_dim];
      top = part > top ? part : top;
    }
    memset(acc, 0, a.head_dim * sizeof(float));
    for (long s = 0; s < merge.splits; s++) {
      const float* part = parts + s * rows * pitch;
      const float factor = vexp(splat(part[a.head_dim] - top))[0];
      sum += part[a.head_dim + 1] * factor;
      for (long d = 0; d < a.head_dim; d++) acc[d] += part[d] * factor;
    }
    finish_row(a, whole, row, acc, top, sum);
  }
}

template <class Cache>
void attention(const AttentionArgs& a) {
#pragma omp parallel if (a.num_items > 1)
  {
    static thread_local Scratch scratch;
#pragma omp for schedule(dynamic, 1)
    for (long i = 0; i < a.num_items; i++) attend<Cache>(a, a.items[i], scratch);
#pragma omp for schedule(static)
    for (long i = 0; i < a.num_merges; i++) merge(a, a.merges[i], scratch);
  }
}

template void attention<float>(const AttentionArgs&);
template void attention<Bf16>(const AttentionArgs&);
template void attention<F16>(const AttentionArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
