// Attention for up to 16 rows on AMX tiles: some KV heads of one sequence at once, so that keys and values stream from memory in
// the order in which they lie there. Keys and values are read straight from their pages.
//
// Per block of keys:
//   scores^T [16 keys x 16 rows] = sum over KV heads of keys (A) x queries^T (B). Each head's queries fill its own columns of B,
//     the others are zero, so all heads share one result.
//   softmax of all rows (attention_tile.h)
//   output [rows of a head x 16 pairs of dims] += weights (A) x values (B). B wants pairs of keys, but a page has pairs of
//     neighbouring dims. So weights times (1, 0) give the even dims, times (0, 1) the odd ones.
#pragma once
#include "attention_tile.h"

namespace minivllm {
namespace MINIVLLM_ISA {

class DecodeAttention {
 public:
  DecodeAttention(const AttentionArgs& args, const AttentionItem& item, Scratch& scratch)
      : a(args), item(item), dim(args.head_dim), rows(item_rows(args, item)), head_rows(rows / item.num_kv_heads) {
    // In floats; bf16 takes half.
    const long for_queries = item.num_kv_heads * kGroup * dim / 2;
    float* at = scratch.floats(for_queries + kGroup * dim * 3 / 2 + kGroup * kTileKeys * 7 / 2 + kGroup * kGroup + 2 * kGroup);
    queries = (Bf16*)at;
    acc = at += for_queries;
    spare = (Bf16*)(at += kGroup * dim);
    scores = at += kGroup * dim / 2;
    even = (uint32_t*)(at += kGroup * kTileKeys);
    odd = (uint32_t*)(at += kGroup * kTileKeys);
    weights = (Bf16*)(at += kGroup * kTileKeys);
    tile = at += kGroup * kTileKeys / 2;
    top = at += kGroup * kGroup;
    sum = at + kGroup;
    memset(acc, 0, kGroup * dim * sizeof(float));
    for (long row = 0; row < kGroup; row++) top[row] = kHidden, sum[row] = 0;
    pack_queries();
  }

  void run() {
    const TileSoftmax softmax{a, item, scores, weights, top, sum, acc};
    const Tiles multiply_keys(kGroup), multiply_values(head_rows);
    for (long key = item.key_begin / kGroup * kGroup; key < item.key_end; key += kTileKeys) {
      const long count = min_of(kTileKeys, item.key_end - key), key_groups = round_up(count, kGroup) / kGroup;
      locate(key, key_groups);
      _tile_loadconfig(&multiply_keys);
      for (long k = 0; k < key_groups; k++) score(k);
      softmax.update(0, rows, key, count);
      spread_weights(key_groups);
      _tile_loadconfig(&multiply_values);
      for (long head = 0; head < item.num_kv_heads; head++) combine(head, key, count);
    }
    _tile_release();
    for (long row = 0; row < rows; row++) finish(row);
  }

 private:
  // 0 to 3: results; 4 and 5: A; of `results` rows. 6 and 7: 16 rows.
  struct alignas(64) Tiles {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t height[16] = {0, 0, 0, 0, 0, 0, 16, 16};

    explicit Tiles(long results) {
      for (int i = 0; i < 6; i++) height[i] = (uint8_t)results;
    }
  };

  // Per KV head and 32 dims: 16 pairs of dims x 16 rows.
  void pack_queries() {
    memset(queries, 0, item.num_kv_heads * kGroup * dim * sizeof(Bf16));
    for (long row = 0; row < rows; row++) {
      const uint32_t* from = (const uint32_t*)((const Bf16*)a.q + row_offset(a, item, row, a.q_stride));
      uint32_t* to = (uint32_t*)(queries + row / head_rows * kGroup * dim) + row;
      for (long pair = 0; pair < dim / 2; pair++) memcpy(to + pair * kGroup, from + pair, 4);
    }
  }

  // First key, of the first KV head, of every 16; a page holds whole groups. The next head's lie a page's keys further.
  void locate(long key, long key_groups) {
    const int32_t* table = a.block_tables + item.seq * a.table_stride;
    for (long k = 0; k < key_groups; k++, key += kGroup) {
      const long page = table[key / a.block_size], offset = key % a.block_size;
      keys[k] = (const Bf16*)a.kv + ((page * a.kv_heads + item.kv_head) * a.block_size + offset) * dim;
    }
  }

  void score(long k) {
    _tile_zero(0);
    for (long head = 0; head < item.num_kv_heads; head++) {
      for (long d = 0; d < dim; d += kDepth) {
        _tile_loadd(6, keys[k] + head * a.block_size * dim + d, dim * 2);
        _tile_loadd(7, queries + head * kGroup * dim + d * kGroup, 64);
        _tile_dpbf16ps(0, 6, 7);
      }
    }
    _tile_stored(0, tile, 64);
    transpose(tile, scores + k * kGroup, kTileKeys);
  }

  // Per group of keys: rows x 16 keys, each beside a zero.
  void spread_weights(long key_groups) {
    for (long k = 0; k < key_groups; k++) {
      for (long row = 0; row < rows; row++) {
        const __m256i bits = _mm256_loadu_si256((const __m256i*)(weights + row * kTileKeys + k * kGroup));
        const __m512i low = _mm512_cvtepu16_epi32(bits);
        _mm512_store_si512(even + (k * kGroup + row) * kGroup, low);
        _mm512_store_si512(odd + (k * kGroup + row) * kGroup, _mm512_slli_epi32(low, 16));
      }
    }
  }

  void combine(long head, long key, long count) {
    float* out = acc + head * head_rows * dim;
    for (long d = 0; d < dim; d += 64, out += 64) {
      const bool two = dim - d >= 64;
      _tile_loadd(0, out, dim * 4);
      _tile_loadd(1, out + 16, dim * 4);
      if (two) _tile_loadd(2, out + 32, dim * 4);
      if (two) _tile_loadd(3, out + 48, dim * 4);
      for (long k = 0; k * kGroup < count; k++) {
        const Bf16* values = values_of(head, k, key, count) + d;
        const long at = (k * kGroup + head * head_rows) * kGroup;
        _tile_loadd(4, even + at, 64);
        _tile_loadd(5, odd + at, 64);
        _tile_loadd(6, values, dim * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (!two) continue;
        _tile_loadd(7, values + 32, dim * 2);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, out, dim * 4);
      _tile_stored(1, out + 16, dim * 4);
      if (two) _tile_stored(2, out + 32, dim * 4);
      if (two) _tile_stored(3, out + 48, dim * 4);
    }
  }

  // Values of a group of keys where they lie. If the item does not own all of them, a copy with zeros, since a weight of zero
  // does not hide a NaN.
  const Bf16* values_of(long head, long k, long key, long count) {
    const Bf16* at = keys[k] + (a.blocks * a.kv_heads + head) * a.block_size * dim;
    const long first = max_of(0, item.key_begin - key - k * kGroup), last = min_of(kGroup, count - k * kGroup);
    if (first == 0 && last == kGroup) return at;
    memset(spare, 0, kGroup * dim * sizeof(Bf16));
    memcpy(spare + first * dim, at + first * dim, (last - first) * dim * sizeof(Bf16));
    return spare;
  }

  void finish(long row) {
    float* out = acc + row * dim;
    for (long d = 0; d < dim; d += 32) {
      const __m512 evens = _mm512_loadu_ps(out + d), odds = _mm512_loadu_ps(out + d + 16);
      const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
      _mm512_storeu_ps(out + d, _mm512_permutex2var_ps(evens, first, odds));
      _mm512_storeu_ps(out + d + 16, _mm512_permutex2var_ps(evens, second, odds));
    }
    finish_row(a, item, row, out, top[row] * 0.693147181f, sum[row]);
  }

  const AttentionArgs& a;
  const AttentionItem& item;
  const long dim, rows, head_rows;
  Bf16 *queries, *weights, *spare;
  uint32_t *even, *odd;
  float *acc, *scores, *tile, *top, *sum;
  const Bf16* keys[kTileKeys / kGroup];
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
