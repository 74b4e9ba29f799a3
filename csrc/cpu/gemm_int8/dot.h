// Block kernel on vpdpbusd: up to 6 rows x 32 columns of results, as two sums each, in registers.
#pragma once
#include "rows.h"

namespace minivllm {
namespace MINIVLLM_ISA {

// 256 * high + low without what the offset of the weights added.
MINIVLLM_INLINE vf total(__m512i high, __m512i low, const RowFacts& facts) {
  const __m512i upper = _mm512_sub_epi32(high, _mm512_set1_epi32(facts.high));
  const __m512i lower = _mm512_sub_epi32(low, _mm512_set1_epi32(facts.low));
  return (vf)_mm512_cvtepi32_ps(upper) * 256.0f + (vf)_mm512_cvtepi32_ps(lower);
}

struct DotKernel {
  using X = int8_t;
  static constexpr long kBlock = 6;

  template <int M>
  static void block(const GemmInt8Args& a, const QuantizedRows<X>& rows, const uint8_t* panel, long row, long column) {
    // A single row has too few independent sums to hide the latency of vpdpbusd, so it takes k in strands.
    constexpr int kStrands = M == 1 ? 4 : M == 2 ? 2 : 1;
    const X* x = rows.data + 2 * row * rows.depth;
    __m512i sums[kStrands][2 * M][2];
    MINIVLLM_UNROLL for (int s = 0; s < kStrands; s++)
      MINIVLLM_UNROLL for (int r = 0; r < 2 * M; r++) sums[s][r][0] = sums[s][r][1] = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (long k = 0; k < rows.depth; k += 4 * kStrands, panel += 4 * kPanel * kStrands) {
      MINIVLLM_UNROLL for (int s = 0; s < kStrands; s++) {
        const __m512i left = _mm512_loadu_si512(panel + s * 4 * kPanel);
        const __m512i right = _mm512_loadu_si512(panel + s * 4 * kPanel + 2 * kPanel);
        MINIVLLM_UNROLL for (int r = 0; r < 2 * M; r++) {
          int quad;
          memcpy(&quad, x + r * rows.depth + k + 4 * s, 4);
          const __m512i all = _mm512_set1_epi32(quad);
          sums[s][r][0] = _mm512_dpbusd_epi32(sums[s][r][0], left, all);
          sums[s][r][1] = _mm512_dpbusd_epi32(sums[s][r][1], right, all);
        }
      }
    }
    MINIVLLM_UNROLL for (int s = 1; s < kStrands; s++)
      MINIVLLM_UNROLL for (int r = 0; r < 2 * M; r++)
        MINIVLLM_UNROLL for (int half = 0; half < 2; half++)
          sums[0][r][half] = _mm512_add_epi32(sums[0][r][half], sums[s][r][half]);
    MINIVLLM_UNROLL for (int r = 0; r < M; r++) {
      alignas(64) float out[kPanel];
      const RowFacts& facts = rows.facts[row + r];
      store(out, total(sums[0][2 * r][0], sums[0][2 * r + 1][0], facts));
      store(out + 16, total(sums[0][2 * r][1], sums[0][2 * r + 1][1], facts));
      store_row(out, a, facts.scale, row + r, column);
    }
  }

  // Rows [begin, end) of x times one panel, in blocks of nearly equal height.
  static void multiply(const GemmInt8Args& a, const QuantizedRows<X>& x, const uint8_t* panel, long begin, long end,
                       long column) {
    using Block = void (*)(const GemmInt8Args&, const QuantizedRows<X>&, const uint8_t*, long, long);
    static constexpr Block blocks[] = {block<1>, block<2>, block<3>, block<4>, block<5>, block<6>};
    const long parts = (end - begin + kBlock - 1) / kBlock;
    for (long part = 0; part < parts; part++) {
      const long from = begin + (end - begin) * part / parts, to = begin + (end - begin) * (part + 1) / parts;
      blocks[to - from - 1](a, x, panel, from, column);
    }
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
