// Attention for up to 16 rows, of 8 a KV head at most: some KV heads of one sequence at once, so that keys and values stream from
// memory in the order in which they lie there, and are read straight from their pages.
//
// Per block of keys:
//   scores^T [16 keys x 16 rows] = sum over KV heads of keys (A) x queries^T (B), on AMX tiles. Each head's queries fill its own
//     columns of B, the others are zero, so all heads share one result.
//     An int8 cache is multiplied as it is, by queries of 16 bits in two halves.
//   softmax with a row in each lane, which needs no transposition and no reduction across lanes
//   output [rows of a head x dims] += weights x values in vectors of fp32: with so few rows tiles take longer, and a processor
//     looks further ahead in memory past plain loads
#pragma once
#include "attention_tile.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long kHeadRows = 8;
constexpr long kInt8Depth = 64;  // dims of an int8 tile
template <class Cache>
constexpr long kLine = 64 / sizeof(Cache);

// 32 values: of bf16 the even ones and the odd ones, of int8 the first half and the second.
MINIVLLM_INLINE void load_pair(const Bf16* from, vf& even, vf& odd) {
  const __m512i both = _mm512_loadu_si512(from);
  even = (vf)_mm512_slli_epi32(both, 16);
  odd = (vf)_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000));
}

MINIVLLM_INLINE void load_pair(const I8* from, vf& first, vf& second) { first = load(from), second = load(from + kLanes); }

// acc += weights^T x values of keys [first, last), for Rows rows and Pairs x 32 dims, which acc holds in the order of load_pair.
// Values come in groups of 16; while one is in use, the group at `later` is fetched: arithmetic that waits for memory leaves no
// room for the loads behind it. In int8, which takes less time to come, it is a group of the next block, with its keys.
template <class Cache, int Rows, int Pairs>
static void add_values(const float* weights, const Cache* const* values, const Cache* const* fetched, long values_at, long first,
                       long last, long dim, float* acc) {
  __m512 even[Rows][Pairs], odd[Rows][Pairs];
  MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) {
    MINIVLLM_UNROLL for (int p = 0; p < Pairs; p++) {
      even[r][p] = _mm512_loadu_ps(acc + r * dim + p * 32);
      odd[r][p] = _mm512_loadu_ps(acc + r * dim + p * 32 + 16);
    }
  }
  for (long key = first; key < last;) {
    const Cache* from = values[key / kGroup] + key % kGroup * dim;
    for (const long end = min_of(last, round_up(key + 1, kGroup)); key < end; key++, from += dim) {
      const float* weight = weights + key * kGroup;
      const Cache* later = fetched[key / kGroup] + key % kGroup * dim;
      MINIVLLM_UNROLL for (int p = 0; p < Pairs * 32; p += kLine<Cache>) {
        __builtin_prefetch(later + p, 0, kScaled<Cache> ? 2 : 3);
        if constexpr (kScaled<Cache>) __builtin_prefetch(later + p - values_at, 0, 2);
      }
      MINIVLLM_UNROLL for (int p = 0; p < Pairs; p++) {
        vf low, high;
        load_pair(from + p * 32, low, high);
        MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) {
          even[r][p] = _mm512_fmadd_ps(_mm512_set1_ps(weight[r]), (__m512)low, even[r][p]);
          odd[r][p] = _mm512_fmadd_ps(_mm512_set1_ps(weight[r]), (__m512)high, odd[r][p]);
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

template <class Cache>
using AddValues = void (*)(const float*, const Cache* const*, const Cache* const*, long, long, long, long, float*);
// [whether 64 dims fit at once][rows - 1]
template <class Cache>
constexpr AddValues<Cache> kAddValues[2][kHeadRows] = {
    {add_values<Cache, 1, 1>, add_values<Cache, 2, 1>, add_values<Cache, 3, 1>, add_values<Cache, 4, 1>, add_values<Cache, 5, 1>,
     add_values<Cache, 6, 1>, add_values<Cache, 7, 1>, add_values<Cache, 8, 1>},
    {add_values<Cache, 1, 2>, add_values<Cache, 2, 2>, add_values<Cache, 3, 2>, add_values<Cache, 4, 2>, add_values<Cache, 5, 1>,
     add_values<Cache, 6, 1>, add_values<Cache, 7, 1>, add_values<Cache, 8, 1>}};

template <class Cache>
class DecodeAttention {
 public:
  DecodeAttention(const AttentionArgs& args, const AttentionItem& item, Scratch& scratch)
      : a(args), item(item), dim(args.head_dim), depth(round_up(dim, kScaled<Cache> ? kInt8Depth : kDepth)),
        page(page_size<Cache>(args)), to_values(values_at<Cache>(args)), rows(item_rows(args, item)),
        head_rows(rows / item.num_kv_heads) {
    const long for_queries = item.num_kv_heads * kGroup * depth / 2;  // in floats; bf16 takes half
    queries = (Bf16*)scratch.floats(for_queries + kTileKeys * kGroup + rows * dim);
    scores = (float*)queries + for_queries;
    acc = scores + kTileKeys * kGroup;
    memset(acc, 0, rows * dim * sizeof(float));
    if constexpr (kScaled<Cache>) {
      fetch_first();
      split_queries();
    } else {
      pack_queries();
    }
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
      for (long k = 0; k < groups; k++) keys[k] = locate(key + k * kGroup, scales[k]);
      const long left = max_of(1, round_up(item.key_end - key - kTileKeys, kGroup) / kGroup);  // groups after this block
      const bool more = key + kTileKeys < item.key_end;
      const float* unused;
      for (long k = 0; k < (kScaled<Cache> ? groups : 1); k++) {
        next_keys[k] = more ? locate(key + kTileKeys + min_of(k, left - 1) * kGroup, unused) : keys[k];
      }
      for (long k = 0; k < groups; k += kAtOnce) {
        const long together = min_of(kAtOnce, groups - k);
        if constexpr (kScaled<Cache>) {
          score_int8(k, together);
        } else {
          score(k, together);
        }
      }
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

  // The same in units of query_scale, 64 dims and 8 bits at a time: quads of dims x 16 rows of upper halves, then of lower ones.
  void split_queries() {
    memset(queries, 0, item.num_kv_heads * kGroup * depth * sizeof(Bf16));
    for (long row = 0; row < rows; row++) {
      float* line = scores;
      read_query(a, item, row, line);
      vf high = splat(1e-30f);
      for (long d = 0; d < dim; d += kLanes) high = vmax(high, vmax(load(line + d), -load(line + d)));
      const float top = reduce_max(high), factor = 127 * 256 / top;
      query_scale[row] = top / (127 * 256);
      for (long d = 0; d < dim; d += kLanes) {
        const vi whole = (vi)_mm512_cvtps_epi32((__m512)(load(line + d) * factor)), lower = whole << 24 >> 24;
        uint32_t quads[2][4];
        _mm_storeu_si128((__m128i*)quads[0], _mm512_cvtepi32_epi8((__m512i)((whole - lower) >> 8)));
        _mm_storeu_si128((__m128i*)quads[1], _mm512_cvtepi32_epi8((__m512i)lower));
        for (long half = 0; half < 2; half++) {
          uint32_t* to = (uint32_t*)query_tile(row / head_rows, d) + half * 256 + d % kInt8Depth / 4 * kGroup + row;
          for (long quad = 0; quad < 4; quad++) to[quad * kGroup] = quads[half][quad];
        }
      }
    }
    for (long row = rows; row < kGroup; row++) query_scale[row] = 0;
    for (long head = 0; head < kGroup; head++) from_head[head] = (__mmask16)(0xffff << min_of(kGroup, head * head_rows));
  }

  // Keys of the first block.
  void fetch_first() const {
    const float* unused;
    const long begin = item.key_begin / kGroup * kGroup, end = min_of(item.key_end, begin + kTileKeys);
    for (long key = begin; key < end; key += kGroup) {
      const Cache* from = locate(key, unused);
      for (long head = 0; head < item.num_kv_heads; head++, from += page) {
        for (long i = 0; i < kGroup * dim + kLine<Cache>; i += kLine<Cache>) __builtin_prefetch(from + i, 0, 2);
      }
    }
  }

  int8_t* query_tile(long head, long d) const { return (int8_t*)(queries + head * kGroup * depth) + d / kInt8Depth * 2048; }

  // 16 keys of the first KV head, and their scales if they have any; a page holds whole groups. The next head's are a page further.
  const Cache* locate(long key, const float*& scales) const {
    const long block = a.block_tables[item.seq * a.table_stride + key / a.block_size], offset = key % a.block_size;
    const Cache* start = (const Cache*)a.kv + (block * a.kv_heads + item.kv_head) * page;
    scales = (const float*)(start + a.block_size * dim) + offset;
    return start + offset * dim;
  }

  // The scale of each row's head.
  vf spread(const float* scale) const {
    __m512 each = _mm512_set1_ps(*scale);
    for (long head = 1; head < item.num_kv_heads; head++) {
      each = _mm512_mask_broadcastss_ps(each, from_head[head], _mm_load_ss(scale + head * page / sizeof(float)));
    }
    return (vf)each;
  }

  // Two groups at once. Where dims end in half a tile, its keys go on with the next row or with scales, and queries with zeros.
  void score_int8(long k, long count) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long head = 0; head < item.num_kv_heads; head++) {
      for (long d = 0; d < dim; d += kInt8Depth) {
        _tile_loadd(5, query_tile(head, d), 64);
        _tile_loadd(6, query_tile(head, d) + 1024, 64);
        _tile_loadd(4, keys[k] + head * page + d, dim);
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 6);
        if (count < 2) continue;
        _tile_loadd(4, keys[k + 1] + head * page + d, dim);
        _tile_dpbssd(2, 4, 5);
        _tile_dpbssd(3, 4, 6);
      }
    }
    alignas(64) int32_t halves[4][kGroup * kGroup];
    _tile_stored(0, halves[0], 64);
    _tile_stored(1, halves[1], 64);
    _tile_stored(2, halves[2], 64);
    _tile_stored(3, halves[3], 64);
    const vf unit = load(query_scale);
    for (long g = 0; g < count; g++) {
      for (long i = 0; i < kGroup; i++) {
        const vf upper = (vf)_mm512_cvtepi32_ps(_mm512_load_si512(halves[2 * g] + i * kGroup));
        const vf lower = (vf)_mm512_cvtepi32_ps(_mm512_load_si512(halves[2 * g + 1] + i * kGroup));
        store(scores + ((k + g) * kGroup + i) * kGroup, (upper * 256.0f + lower) * unit * spread(scales[k + g] + i));
      }
    }
  }

  // Some groups at once, since each product waits for the one before it in the same result.
  void score(long k, long count) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long head = 0; head < item.num_kv_heads; head++) {
      for (long d = 0; d < dim; d += kDepth) {
        const long at = head * page + d;
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
    [[maybe_unused]] const long value_scales = to_values / sizeof(float);
    const float scale = a.soft_cap == 0.0f ? a.scale * kLog2e : 1.0f;
    if (a.soft_cap != 0.0f || needs_mask(a, item, key, count)) adjust(key, count);
    vf high[2] = {splat(kHidden), splat(kHidden)}, total[2] = {};
    for (long i = first; i < count; i++) high[i % 2] = vmax(high[i % 2], load(scores + i * kGroup));
    const vf after = vmax(top, vmax(high[0], high[1]) * scale), factor = exp2(top - after);
    for (long i = first; i < count; i++) {
      vf weight = exp2(load(scores + i * kGroup) * scale - after);
      total[i % 2] += weight;
      const Cache* value = keys[i / kGroup] + to_values + i % kGroup * dim;
      for (long head = 0; head < (kScaled<Cache> ? item.num_kv_heads : 1); head++, value += page) {
        for (long d = 0; d < dim; d += kLine<Cache>) __builtin_prefetch(value + d);
      }
      if constexpr (kScaled<Cache>) weight *= spread(scales[i / kGroup] + value_scales + i % kGroup);
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
    const Cache *values[kTileKeys / kGroup + 1], *ahead[kTileKeys / kGroup];
    const long at = to_values + head * page, groups = round_up(count, kGroup) / kGroup;
    float* out = acc + head * head_rows * dim;
    const bool wide = dim % 64 == 0;
    const long step = wide && head_rows <= 4 ? 64 : 32;
    for (long d = 0; d < dim; d += step) {
      for (long k = 0; k < groups; k++) values[k] = keys[k] + at + d;
      values[groups] = head + 1 < item.num_kv_heads ? values[0] + page : next_keys[0] + d;
      for (long k = 0; k < groups && kScaled<Cache>; k++) {
        ahead[k] = next_keys[k] + at + d;
        const Cache* scale = next_keys[k] + head * page + kGroup * dim;  // where a page is one group
        __builtin_prefetch(scale, 0, 2);
        __builtin_prefetch(scale + to_values, 0, 2);
      }
      kAddValues<Cache>[wide][head_rows - 1](scores + head * head_rows, values, kScaled<Cache> ? ahead : values + 1, to_values,
                                             first, count, dim, out + d);
    }
  }

  void finish(long row, float high, float total) {
    float* out = acc + row * dim;
    for (long d = 0; d < dim && !kScaled<Cache>; d += 32) {
      const __m512 evens = _mm512_loadu_ps(out + d), odds = _mm512_loadu_ps(out + d + 16);
      const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
      _mm512_storeu_ps(out + d, _mm512_permutex2var_ps(evens, first, odds));
      _mm512_storeu_ps(out + d + 16, _mm512_permutex2var_ps(evens, second, odds));
    }
    finish_row(a, item, row, out, high, total);
  }

  static constexpr long kAtOnce = kScaled<Cache> ? 2 : kGroupsAtOnce;  // groups of keys

  const AttentionArgs& a;
  const AttentionItem& item;
  const long dim, depth, page, to_values, rows, head_rows;  // depth: dim in whole tiles
  Bf16* queries;
  float *scores, *acc;  // [keys][16 rows], [rows][dim]
  vf top = splat(kHidden), sum = {};
  int lowest[kGroup], highest[kGroup];  // keys that a row sees
  const Cache *keys[kTileKeys / kGroup], *next_keys[kTileKeys / kGroup];  // next: of the next block
  const float* scales[kTileKeys / kGroup];
  float query_scale[kGroup];
  __mmask16 from_head[kGroup];  // rows of this KV head and the later ones
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
