// Parts of attention on AMX tiles: transposition, and the softmax of scores that stand as [row][key].
#pragma once
#include <immintrin.h>

#include "attention_common.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long kTileKeys = 128;  // keys per block
constexpr long kGroup = 16;      // rows of a tile
constexpr long kGroupsAtOnce = 4;

// Every tile is 16 rows of 64 bytes. 0 to 3: results; 4: A; 5 and 6: B.
struct alignas(64) FullTiles {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16};
};

// to[c * pitch + r] = from[r * 16 + c]
MINIVLLM_INLINE void transpose(const float* from, float* to, long pitch) {
  __m512 a[16], b[16];
  MINIVLLM_UNROLL for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(from + i * 16);
  MINIVLLM_UNROLL for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  MINIVLLM_UNROLL for (int i = 0; i < 16; i += 4) {
    a[i] = (__m512)_mm512_unpacklo_pd((__m512d)b[i], (__m512d)b[i + 2]);
    a[i + 1] = (__m512)_mm512_unpackhi_pd((__m512d)b[i], (__m512d)b[i + 2]);
    a[i + 2] = (__m512)_mm512_unpacklo_pd((__m512d)b[i + 1], (__m512d)b[i + 3]);
    a[i + 3] = (__m512)_mm512_unpackhi_pd((__m512d)b[i + 1], (__m512d)b[i + 3]);
  }
  // a[4q + c] holds, in 128-bit lane l, column 4l + c of rows 4q..4q+3.
  MINIVLLM_UNROLL for (int c = 0; c < 4; c++) {
    const __m512 low = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x44), low2 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x44);
    const __m512 high = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xee), high2 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xee);
    _mm512_storeu_ps(to + c * pitch, _mm512_shuffle_f32x4(low, low2, 0x88));
    _mm512_storeu_ps(to + (4 + c) * pitch, _mm512_shuffle_f32x4(low, low2, 0xdd));
    _mm512_storeu_ps(to + (8 + c) * pitch, _mm512_shuffle_f32x4(high, high2, 0x88));
    _mm512_storeu_ps(to + (12 + c) * pitch, _mm512_shuffle_f32x4(high, high2, 0xdd));
  }
}

// 2^x for x <= 0 with a relative error of 3e-6, ample for bf16 weights.
MINIVLLM_INLINE vf exp2(vf x) {
  x = x < -126.0f ? splat(kHidden) : x;  // no denormals
  const vf n = (vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = x - n;
  vf p = splat(0.009560510517f);
  p = p * r + 0.05591703951f;
  p = p * r + 0.2402498126f;
  p = p * r + 0.6931219697f;
  p = p * r + 0.9999991655f;
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
}

// Maxima of 16 vectors, one per lane.
MINIVLLM_INLINE vf max_each(const vf* v) {
  float turned[kGroup * kGroup];
  transpose((const float*)v, turned, kGroup);
  vf high = load(turned);
  MINIVLLM_UNROLL for (int i = 1; i < kGroup; i++) high = vmax(high, load(turned + i * kGroup));
  return high;
}

// Running softmax of an item's rows, block by block of keys.
struct TileSoftmax {
  const AttentionArgs& a;
  const AttentionItem& item;
  float* scores;     // [rows][kTileKeys]
  Bf16* weights;     // the same
  float *top, *sum;  // [rows]
  float* acc;        // [rows][head_dim]

  // Running softmax of a group of rows: scores -> weights; older results of a row shrink by the change of its maximum. Scores
  // are in units of log 2. Steps with a long latency (maximum, sum, factor) are taken for all rows of the group at once.
  void update(long first, long rows, long key, long count) const {
    constexpr int kVectors = kTileKeys / kLanes;
    const long active = min_of(kGroup, rows - first), dim = a.head_dim;
    vf best[kGroup], total[kGroup];
    for (long r = 0; r < active; r++) {
      float* row = scores + (first + r) * kTileKeys;
      adjust(row, row_position(a, item, first + r), key, count);
      vf high = load(row);
      MINIVLLM_UNROLL for (int v = 1; v < kVectors; v++) high = vmax(high, load(row + v * kLanes));
      best[r] = high;
    }
    for (long r = active; r < kGroup; r++) best[r] = total[r] = vf{};
    const vf before = load(top + first), after = vmax(before, max_each(best)), factor = exp2(before - after);
    store(top + first, after);
    for (long r = 0; r < active; r++) {
      const float* row = scores + (first + r) * kTileKeys;
      Bf16* to = weights + (first + r) * kTileKeys;
      vf sums[2] = {};
      MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) {
        const vf weight = exp2(load(row + v * kLanes) - top[first + r]);
        sums[v % 2] += weight;
        store(to + v * kLanes, weight);
      }
      total[r] = sums[0] + sums[1];
    }
    store(sum + first, load(sum + first) * factor + reduce_each(total));
    for (long r = 0; r < active; r++) {
      if (factor[r] == 1.0f) continue;
      float* out = acc + (first + r) * dim;
      for (long d = 0; d < dim; d += kLanes) store(out + d, load(out + d) * factor[r]);
    }
  }

  // Raw scores of one row -> scaled, capped, in units of log 2, hidden where the row does not see the key.
  void adjust(float* row, long position, long key, long count) const {
    constexpr float kLog2e = 1.44269504f;
    const long low = max_of(item.key_begin, lowest_key(a, position)) - key, high = min_of(count - 1, position - key);
    const bool mask = low > 0 || high < kTileKeys - 1;
    const vf lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (long i = 0; i < kTileKeys; i += kLanes) {
      vf score = load(row + i) * (a.soft_cap == 0.0f ? a.scale * kLog2e : a.scale);
      if (a.soft_cap != 0.0f) score = cap(score, a.soft_cap) * kLog2e;
      if (mask) {
        const vf at = lane + (float)i;
        score = at < (float)low ? splat(kHidden) : score;
        score = at > (float)high ? splat(kHidden) : score;
      }
      store(row + i, score);
    }
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
