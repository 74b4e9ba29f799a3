// Attention for up to 16 rows, of 8 a KV head at most: some KV heads of one sequence at once, so that keys and values stream from
// memory in the order in which they lie there, and are read straight from their pages.
//
// Per block of keys:
//   scores^T [16 keys x 16 rows] = sum over KV heads of keys (A) x queries^T (B), on AMX tiles. Each head's queries fill its own
//     columns of B, the others are zero, so all heads share one result.
//   softmax with a row in each lane, which needs no transposition and no reduction across lanes
//   output [rows of a head x dims] += weights x values in vectors of fp32: with so few rows tiles take longer, and a processor
//     looks further ahead in memory past plain loads
#pragma once
#include "attention_tile.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long kHeadRows = 8;

// acc += weights^T x values of keys [first, last), for Rows rows and Pairs x 32 dims. Of each 32 dims, acc holds the even ones
// first. Values come in groups of 16, each fetched while the one before it is in use, the one after the last included: arithmetic
// that waits for memory leaves no room for the loads behind it.
template <int Rows, int Pairs>
static void add_values(const float* weights, const Bf16* const* values, long first, long last, long dim, float* acc) {
  __m512 even[Rows][Pairs], odd[Rows][Pairs];
  MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) {
    MINIVLLM_UNROLL for (int p = 0; p < Pairs; p++) {
      even[r][p] = _mm512_loadu_ps(acc + r * dim + p * 32);
      odd[r][p] = _mm512_loadu_ps(acc + r * dim + p * 32 + 16);
    }
  }
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
  for (long key = first; key < last;) {
    const Bf16* from = values[key / kGroup] + key % kGroup * dim;
    for (const long end = min_of(last, round_up(key + 1, kGroup)); key < end; key++, from += dim) {
      const float* weight = weights + key * kGroup;
      const Bf16* later = values[key / kGroup + 1] + key % kGroup * dim;
      MINIVLLM_UNROLL for (int p = 0; p < Pairs; p++) __builtin_prefetch(later + p * 32);
      MINIVLLM_UNROLL for (int p = 0; p < Pairs; p++) {
        const __m512i both = _mm512_loadu_si512(from + p * 32);
        const __m512 low = (__m512)_mm512_slli_epi32(both, 16), high = (__m512)_mm512_and_si512(both, upper);
        MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) {
          even[r][p] = _mm512_fmadd_ps(_mm512_set1_ps(weight[r]), low, even[r][p]);
          odd[r][p] = _mm512_fmadd_ps(_mm512_set1_ps(weight[r]), high, odd[r][p]);
        }
      }
    }
  }
  MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) {
    MINIVLLM_UNROLL for (int p = 0; p < Pairs; p++) {
      _mm512_storeu_ps(acc + r * dim + p * 32, even[r][p]);
      _mm512_storeu_ps(acc + r * dim + p * 32 + 16, odd[r][p]);
    }
  }
}

using AddValues = void (*)(const float*, const Bf16* const*, long, long, long, float*);
// [whether 64 dims fit at once][rows - 1]
constexpr AddValues kAddValues[2][kHeadRows] = {
    {add_values<1, 1>, add_values<2, 1>, add_values<3, 1>, add_values<4, 1>, add_values<5, 1>, add_values<6, 1>,
     add_values<7, 1>, add_values<8, 1>},
    {add_values<1, 2>, add_values<2, 2>, add_values<3, 2>, add_values<4, 2>, add_values<5, 1>, add_values<6, 1>,
     add_values<7, 1>, add_values<8, 1>}};

class DecodeAttention {
 public:
  DecodeAttention(const AttentionArgs& args, const AttentionItem& item, Scratch& scratch)
      : a(args), item(item), dim(args.head_dim), rows(item_rows(args, item)), head_rows(rows / item.num_kv_heads) {
    const long for_queries = item.num_kv_heads * kGroup * dim / 2;  // in floats; bf16 takes half
    queries = (Bf16*)scratch.floats(for_queries + kTileKeys * kGroup + rows * dim);
    scores = (float*)queries + for_queries;
    acc = scores + kTileKeys * kGroup;
    memset(acc, 0, rows * dim * sizeof(float));
    pack_queries();
    for (long row = 0; row < kGroup; row++) {
      const long position = row < rows ? row_position(a, item, row) : item.position;
      lowest[row] = (int)max_of(item.key_begin, lowest_key(a, position));
      highest[row] = (int)min_of(item.key_end - 1, position);
    }
  }

  void run() {
    const FullTiles config;
    _tile_loadconfig(&config);
    for (long key = item.key_begin / kGroup * kGroup; key < item.key_end; key += kTileKeys) {
      const long count = min_of(kTileKeys, item.key_end - key), first = max_of(0, item.key_begin - key);
      const long groups = round_up(count, kGroup) / kGroup;
      for (long k = 0; k < groups; k++) keys[k] = locate(key + k * kGroup);
      next_keys = key + kTileKeys < item.key_end ? locate(key + kTileKeys) : keys[0];
      for (long k = 0; k < groups; k += kGroupsAtOnce) score(k, min_of(kGroupsAtOnce, groups - k));
      update(key, first, count);
      for (long head = 0; head < item.num_kv_heads; head++) combine(head, first, count);
    }
    _tile_release();
    float high[kGroup], total[kGroup];
    store(high, top * 0.693147181f);
    store(total, sum);
    for (long row = 0; row < rows; row++) finish(row, high[row], total[row]);
  }

 private:
  // Per KV head and 32 dims: 16 pairs of dims x 16 rows.
  void pack_queries() {
    memset(queries, 0, item.num_kv_heads * kGroup * dim * sizeof(Bf16));
    for (long row = 0; row < rows; row++) {
      const uint32_t* from = (const uint32_t*)((const Bf16*)a.q + row_offset(a, item, row, a.q_stride));
      uint32_t* to = (uint32_t*)(queries + row / head_rows * kGroup * dim) + row;
      for (long pair = 0; pair < dim / 2; pair++) memcpy(to + pair * kGroup, from + pair, 4);
    }
  }

  // 16 keys of the first KV head; a page holds whole groups. The next head's lie a page's keys further.
  const Bf16* locate(long key) const {
    const long page = a.block_tables[item.seq * a.table_stride + key / a.block_size];
    return (const Bf16*)a.kv + ((page * a.kv_heads + item.kv_head) * a.block_size + key % a.block_size) * dim;
  }

  // From a key to its value.
  long values_at() const { return a.blocks * a.kv_heads * a.block_size * dim; }

  // Some groups at once, since each product waits for the one before it in the same result.
  void score(long k, long count) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long head = 0; head < item.num_kv_heads; head++) {
      for (long d = 0; d < dim; d += kDepth) {
        const long at = head * a.block_size * dim + d;
        _tile_loadd(5, queries + head * kGroup * dim + d * kGroup, 64);
        _tile_loadd(4, keys[k] + at, dim * 2);
        _tile_dpbf16ps(0, 4, 5);
        if (count < 2) continue;
        _tile_loadd(4, keys[k + 1] + at, dim * 2);
        _tile_dpbf16ps(1, 4, 5);
        if (count < 3) continue;
        _tile_loadd(4, keys[k + 2] + at, dim * 2);
        _tile_dpbf16ps(2, 4, 5);
        if (count < 4) continue;
        _tile_loadd(4, keys[k + 3] + at, dim * 2);
        _tile_dpbf16ps(3, 4, 5);
      }
    }
    float* to = scores + k * kGroup * kGroup;
    _tile_stored(0, to, 64);
    if (count > 1) _tile_stored(1, to + 256, 64);
    if (count > 2) _tile_stored(2, to + 512, 64);
    if (count > 3) _tile_stored(3, to + 768, 64);
  }

  // Running softmax: scores -> weights; older results shrink by the change of the maximum. Meanwhile memory reads the first head's
  // values.
  void update(long key, long first, long count) {
    constexpr float kLog2e = 1.44269504f;
    const float scale = a.soft_cap == 0.0f ? a.scale * kLog2e : 1.0f;
    if (a.soft_cap != 0.0f || needs_mask(a, item, key, count)) adjust(key, count);
    vf high[2] = {splat(kHidden), splat(kHidden)}, total[2] = {};
    for (long i = first; i < count; i++) high[i % 2] = vmax(high[i % 2], load(scores + i * kGroup));
    const vf after = vmax(top, vmax(high[0], high[1]) * scale), factor = exp2(top - after);
    for (long i = first; i < count; i++) {
      const vf weight = exp2(load(scores + i * kGroup) * scale - after);
      total[i % 2] += weight;
      const Bf16* value = keys[i / kGroup] + values_at() + i % kGroup * dim;
      for (long d = 0; d < dim; d += 32) __builtin_prefetch(value + d);
      store(scores + i * kGroup, weight);
    }
    top = after;
    sum = sum * factor + (total[0] + total[1]);
    for (long row = 0; row < rows; row++) {
      if (factor[row] == 1.0f) continue;
      float* out = acc + row * dim;
      for (long d = 0; d < dim; d += kLanes) store(out + d, load(out + d) * factor[row]);
    }
  }

  // Caps scores, and hides those that a row does not see.
  void adjust(long key, long count) {
    const vi low = load_bits<vi>(lowest), high = load_bits<vi>(highest);
    for (long i = 0; i < count; i++) {
      const vi at = vi{} + (int)(key + i);
      vf score = load(scores + i * kGroup);
      if (a.soft_cap != 0.0f) score = cap(score * a.scale, a.soft_cap) * 1.44269504f;
      score = at < low ? splat(kHidden) : score;
      store(scores + i * kGroup, at > high ? splat(kHidden) : score);
    }
  }

  void combine(long head, long first, long count) {
    const Bf16* values[kTileKeys / kGroup + 1];
    const long at = values_at() + head * a.block_size * dim, groups = round_up(count, kGroup) / kGroup;
    float* out = acc + head * head_rows * dim;
    const bool wide = dim % 64 == 0;
    const long step = wide && head_rows <= 4 ? 64 : 32;
    for (long d = 0; d < dim; d += step) {
      for (long k = 0; k < groups; k++) values[k] = keys[k] + at + d;
      values[groups] = head + 1 < item.num_kv_heads ? values[0] + a.block_size * dim : next_keys + d;
      kAddValues[wide][head_rows - 1](scores + head * head_rows, values, first, count, dim, out + d);
    }
  }

  void finish(long row, float high, float total) {
    float* out = acc + row * dim;
    for (long d = 0; d < dim; d += 32) {
      const __m512 evens = _mm512_loadu_ps(out + d), odds = _mm512_loadu_ps(out + d + 16);
      const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
      _mm512_storeu_ps(out + d, _mm512_permutex2var_ps(evens, first, odds));
      _mm512_storeu_ps(out + d + 16, _mm512_permutex2var_ps(evens, second, odds));
    }
    finish_row(a, item, row, out, high, total);
  }

  const AttentionArgs& a;
  const AttentionItem& item;
  const long dim, rows, head_rows;
  Bf16* queries;
  float *scores, *acc;  // [keys][16 rows], [rows][dim]
  vf top = splat(kHidden), sum = {};
  int lowest[kGroup], highest[kGroup];  // keys that a row sees
  const Bf16 *keys[kTileKeys / kGroup], *next_keys;
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
