// Attention in bf16 on AMX tiles, for whole tiles of head_dim and of a page; otherwise as attention.cpp. Few rows are the matter
// of attention_decode.h. Of an int8 cache each block of keys and values is first made bf16.
//
// Per block of keys, with rows in groups of 16:
//   scores^T [16 keys x 16 rows] = keys, straight from their page (A), x queries^T, packed once (B)
//   softmax: scores are turned to [row][key]; weights leave as bf16
//   output [16 rows x 16 dims] += weights (A) x values with the two keys of a pair interleaved (B)
#include "attention_decode.h"
#include "attention_tile.h"
#include "ops.h"

namespace minivllm {
namespace MINIVLLM_ISA {

template <class Cache>
class TileAttention {
 public:
  TileAttention(const AttentionArgs& args, const AttentionItem& item, Scratch& scratch)
      : a(args), item(item), dim(args.head_dim) {
    rows = item_rows(a, item);
    groups = round_up(rows, kGroup) / kGroup;
    const long padded = groups * kGroup;
    // In floats; bf16 buffers take half.
    float* at = scratch.floats(padded * dim / 2 + padded * dim + padded * kTileKeys * 3 / 2 + kTileKeys * dim / 2 +
                               kGroup * 4 * kGroup + 2 * padded + (kScaled<Cache> ? kTileKeys * dim : 0));
    queries = (Bf16*)at;
    acc = at += padded * dim / 2;
    scores = at += padded * dim;
    weights = (Bf16*)(at += padded * kTileKeys);
    values = (Bf16*)(at += padded * kTileKeys / 2);
    tiles = at += kTileKeys * dim / 2;
    top = at += kGroup * 4 * kGroup;
    sum = at + padded;
    widened = (Bf16*)(sum + padded);
    memset(acc, 0, padded * dim * sizeof(float));
    memset(weights, 0, padded * kTileKeys * sizeof(Bf16));
    for (long row = 0; row < padded; row++) top[row] = kHidden, sum[row] = 0;
    pack_queries(padded);
  }

  void run() {
    const TileSoftmax softmax{a, item, scores, weights, top, sum, acc};
    const FullTiles config;
    _tile_loadconfig(&config);
    for (long key = item.key_begin / kGroup * kGroup; key < item.key_end; key += kTileKeys) {
      const long count = min_of(kTileKeys, item.key_end - key);
      locate(key, count);
      multiply_queries(round_up(count, kGroup) / kGroup);
      pack_values(key, count);
      for (long first = 0; first < rows; first += kGroup) softmax.update(first, rows, key, count);
      multiply_values(round_up(count, kDepth) / kDepth);
    }
    _tile_release();
    for (long row = 0; row < rows; row++) finish(row);
  }

 private:
  // Per group and 32 dims: 16 pairs of dims x 16 rows.
  void pack_queries(long padded) {
    memset(queries, 0, padded * dim * sizeof(Bf16));
    for (long row = 0; row < rows; row++) {
      const uint32_t* from = (const uint32_t*)((const Bf16*)a.q + row_offset(a, item, row, a.q_stride));
      uint32_t* to = (uint32_t*)(queries + row / kGroup * kGroup * dim) + row % kGroup;
      for (long pair = 0; pair < dim / 2; pair++) memcpy(to + pair * kGroup, from + pair, 4);
    }
  }

  // First key and value of every 16; a page holds whole groups.
  void locate(long key, long count) {
    const int32_t* table = a.block_tables + item.seq * a.table_stride;
    for (long i = 0; i < count; i += kGroup) {
      const long page = (key + i) / a.block_size, offset = (key + i) % a.block_size;
      const long to_values = values_at<Cache>(a);
      const Cache* start = (const Cache*)a.kv + (table[page] * a.kv_heads + item.kv_head) * page_size<Cache>(a);
      const Cache* rows = start + offset * dim;
      if constexpr (kScaled<Cache>) {
        const Cache* scales = start + a.block_size * dim + offset * sizeof(float);
        keys[i / kGroup] = widen(rows, (const float*)scales, widened + i * dim);
        values_from[i / kGroup] = widen(rows + to_values, (const float*)(scales + to_values), widened + (kTileKeys + i) * dim);
      } else {
        keys[i / kGroup] = rows;
        values_from[i / kGroup] = rows + to_values;
      }
    }
  }

  const Bf16* widen(const I8* rows, const float* scales, Bf16* to) {
    for (long i = 0; i < kGroup; i++) {
      for (long d = 0; d < dim; d += kLanes) store(to + i * dim + d, load(rows + i * dim + d) * scales[i]);
    }
    return to;
  }

  void multiply_queries(long key_groups) {
    for (long k = 0; k < key_groups; k++) {
      for (long first = 0; first < groups; first += kGroupsAtOnce) {
        const long count = min_of(kGroupsAtOnce, groups - first);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long d = 0; d < dim; d += kDepth) {
          const Bf16* q = queries + first * kGroup * dim + d * kGroup;
          _tile_loadd(4, keys[k] + d, dim * 2);
          _tile_loadd(5, q, 64);
          _tile_dpbf16ps(0, 4, 5);
          if (count < 2) continue;
          _tile_loadd(5, q + kGroup * dim, 64);
          _tile_dpbf16ps(1, 4, 5);
          if (count < 3) continue;
          _tile_loadd(5, q + 2 * kGroup * dim, 64);
          _tile_dpbf16ps(2, 4, 5);
          if (count < 4) continue;
          _tile_loadd(5, q + 3 * kGroup * dim, 64);
          _tile_dpbf16ps(3, 4, 5);
        }
        _tile_stored(0, tiles, 64);
        if (count > 1) _tile_stored(1, tiles + 256, 64);
        if (count > 2) _tile_stored(2, tiles + 512, 64);
        if (count > 3) _tile_stored(3, tiles + 768, 64);
        for (long g = 0; g < count; g++) {
          transpose(tiles + g * 256, scores + (first + g) * kGroup * kTileKeys + k * kGroup, kTileKeys);
        }
      }
    }
  }

  // Pairs of keys interleaved: per 32 keys and 32 dims, 16 pairs x 32 dims in the order of unpack (see finish). Rows that the
  // item does not own are zero, since a weight of zero does not hide a NaN.
  void pack_values(long key, long count) {
    const long padded = round_up(count, kDepth);
    for (long i = 0; i < padded; i += 2) {
      const bool first = key + i >= item.key_begin && i < count, second = key + i + 1 >= item.key_begin && i + 1 < count;
      const Bf16* row = i < count ? values_from[i / kGroup] + i % kGroup * dim : nullptr;
      Bf16* to = values + i / kDepth * kDepth * dim + i % kDepth / 2 * 64;
      for (long d = 0; d < dim; d += 32, to += kDepth * 32) {
        const __m512i even = first ? _mm512_loadu_si512(row + d) : _mm512_setzero_si512();
        const __m512i odd = second ? _mm512_loadu_si512(row + dim + d) : _mm512_setzero_si512();
        _mm512_storeu_si512(to, _mm512_unpacklo_epi16(even, odd));
        _mm512_storeu_si512(to + 32, _mm512_unpackhi_epi16(even, odd));
      }
    }
  }

  void multiply_values(long key_steps) {
    for (long g = 0; g < groups; g++) {
      for (long d = 0; d < dim; d += 32) {
        float* out = acc + g * kGroup * dim + d;
        _tile_loadd(0, out, dim * 4);
        _tile_loadd(1, out + 16, dim * 4);
        for (long k = 0; k < key_steps; k++) {
          const Bf16* pairs = values + (k * dim + d) * kDepth;
          _tile_loadd(4, weights + g * kGroup * kTileKeys + k * kDepth, kTileKeys * 2);
          _tile_loadd(5, pairs, 128);
          _tile_dpbf16ps(0, 4, 5);
          _tile_loadd(5, pairs + 32, 128);
          _tile_dpbf16ps(1, 4, 5);
        }
        _tile_stored(0, out, dim * 4);
        _tile_stored(1, out + 16, dim * 4);
      }
    }
  }

  // unpack leaves dims 8l..8l+3 in lane l of the first tile and 8l+4..8l+7 in lane l of the second; put them in order.
  void finish(long row) {
    float* out = acc + row * dim;
    for (long d = 0; d < dim; d += 32) {
      const __m512 low = _mm512_loadu_ps(out + d), high = _mm512_loadu_ps(out + d + 16);
      const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
      const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
      _mm512_storeu_ps(out + d, _mm512_permutex2var_ps(low, first, high));
      _mm512_storeu_ps(out + d + 16, _mm512_permutex2var_ps(low, second, high));
    }
    finish_row(a, item, row, out, top[row] * 0.693147181f, sum[row]);
  }

  const AttentionArgs& a;
  const AttentionItem& item;
  const long dim;
  long rows, groups;
  Bf16 *queries, *weights, *values, *widened;
  float *acc, *scores, *tiles, *top, *sum;
  const Bf16 *keys[kTileKeys / kGroup], *values_from[kTileKeys / kGroup];
};

template <class Cache>
static void attend_tiles(const AttentionArgs& a) {
  run_plan(a, [&](const AttentionItem& item, Scratch& scratch) {
    const long rows = item_rows(a, item);
    if (rows <= kGroup && rows <= kHeadRows * item.num_kv_heads) return DecodeAttention<Cache>(a, item, scratch).run();
    TileAttention<Cache>(a, item, scratch).run();
  });
}

bool tile_attention(const AttentionArgs& a, DType cache) {
  if (a.dtype != DType::bf16 || a.head_dim % kDepth != 0 || a.block_size % kGroup != 0 || a.alibi_slopes || a.keys) return false;
  cache == DType::i8 ? attend_tiles<I8>(a) : attend_tiles<Bf16>(a);
  return true;
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
