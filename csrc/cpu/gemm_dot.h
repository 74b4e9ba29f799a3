// Block kernel on vdpbf16ps: up to 8 rows x 32 columns of results in registers.
#pragma once
#include "gemm_store.h"

namespace minivllm {
namespace MINIVLLM_ISA {

struct Kernel {
  using X = uint16_t;
  static constexpr long kBlock = 8;

  template <int M>
  static void block(const GemmArgs& a, const Rows<X>& rows, const uint16_t* panel, long row, long column) {
    // A single row has too few independent sums to hide the latency of vdpbf16ps, so it takes k in four strands.
    constexpr int kStrands = M == 1 ? 4 : 1;
    const X* x = rows.data + row * rows.stride;
    __m512 sums[kStrands][M][2];
    MINIVLLM_UNROLL for (int s = 0; s < kStrands; s++)
      MINIVLLM_UNROLL for (int r = 0; r < M; r++) sums[s][r][0] = sums[s][r][1] = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (long k = 0; k < rows.depth; k += 2 * kStrands, panel += 2 * kPanel * kStrands) {
      MINIVLLM_UNROLL for (int s = 0; s < kStrands; s++) {
        const __m512bh left = (__m512bh)_mm512_loadu_si512(panel + s * 2 * kPanel);
        const __m512bh right = (__m512bh)_mm512_loadu_si512(panel + s * 2 * kPanel + kPanel);
        MINIVLLM_UNROLL for (int r = 0; r < M; r++) {
          int pair;
          memcpy(&pair, x + r * rows.stride + k + 2 * s, 4);
          const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
          sums[s][r][0] = _mm512_dpbf16_ps(sums[s][r][0], both, left);
          sums[s][r][1] = _mm512_dpbf16_ps(sums[s][r][1], both, right);
        }
      }
    }
    MINIVLLM_UNROLL for (int r = 0; r < M; r++) {
      alignas(64) float out[kPanel];
      __m512 left = sums[0][r][0], right = sums[0][r][1];
      MINIVLLM_UNROLL for (int s = 1; s < kStrands; s++) {
        left = _mm512_add_ps(left, sums[s][r][0]);
        right = _mm512_add_ps(right, sums[s][r][1]);
      }
      _mm512_store_ps(out, left);
      _mm512_store_ps(out + 16, right);
      store_row(out, a, row + r, column);
    }
  }

  // Rows [begin, end) of x times one panel, in blocks of nearly equal height.
  static void multiply(const GemmArgs& a, const Rows<X>& x, const uint16_t* panel, long begin, long end, long column) {
    using Block = void (*)(const GemmArgs&, const Rows<X>&, const uint16_t*, long, long);
    static constexpr Block blocks[] = {block<1>, block<2>, block<3>, block<4>, block<5>, block<6>, block<7>, block<8>};
    const long parts = (end - begin + kBlock - 1) / kBlock;
    for (long part = 0; part < parts; part++) {
      const long from = begin + (end - begin) * part / parts, to = begin + (end - begin) * (part + 1) / parts;
      blocks[to - from - 1](a, x, panel, from, column);
    }
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
