// Block kernel for CPUs without bf16 arithmetic: weights become fp32 in registers, x beforehand.
#pragma once
#include "gemm_store.h"

namespace minivllm {
namespace MINIVLLM_ISA {

struct Kernel {
  using X = float;
  static constexpr long kBlock = kLanes == 16 ? 8 : 4;
  static constexpr int kVectors = kLanes == 4 ? 4 : 2;
  static constexpr int kStripe = kVectors * kLanes;  // columns at once

  template <int M>
  static void block(const X* x, long depth, const uint16_t* panel, float* out) {
    // Even and odd k have sums of their own if a single row leaves registers free.
    constexpr int kStrands = M == 1 ? 2 : 1;
    vf sums[kStrands][M][kVectors];
    MINIVLLM_UNROLL for (int s = 0; s < kStrands; s++)
      MINIVLLM_UNROLL for (int r = 0; r < M; r++)
        MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) sums[s][r][v] = vf{};
#pragma GCC unroll 1
    for (long k = 0; k < depth; k += 2, panel += 2 * kPanel) {
      MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) {
        const vu pairs = load_bits<vu>(panel + v * kLanes * 2);  // low half of a lane: even k; high half: odd k
        const vf even = (vf)(pairs << 16), odd = (vf)(pairs & 0xffff0000u);
        MINIVLLM_UNROLL for (int r = 0; r < M; r++) {
          sums[0][r][v] += x[r * depth + k] * even;
          sums[kStrands - 1][r][v] += x[r * depth + k + 1] * odd;
        }
      }
    }
    MINIVLLM_UNROLL for (int r = 0; r < M; r++)
      MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++)
        store(out + r * kPanel + v * kLanes, kStrands == 1 ? sums[0][r][v] : sums[0][r][v] + sums[kStrands - 1][r][v]);
  }

  // Rows [begin, end) of x times one panel.
  static void multiply(const GemmArgs& a, const Rows<X>& x, const uint16_t* panel, long begin, long end, long column) {
    alignas(64) float sums[kBlock * kPanel];
    for (long row = begin; row < end; row += kBlock) {
      const long rows = min_of(kBlock, end - row);
      for (long stripe = 0; stripe < kPanel; stripe += kStripe) {
        const X* from = x.data + row * x.depth;
        if (rows == kBlock) {
          block<kBlock>(from, x.depth, panel + stripe * 2, sums + stripe);
        } else {
          for (long r = 0; r < rows; r++) block<1>(from + r * x.depth, x.depth, panel + stripe * 2, sums + r * kPanel + stripe);
        }
      }
      for (long r = 0; r < rows; r++) store_row(sums + r * kPanel, a, row + r, column);
    }
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
