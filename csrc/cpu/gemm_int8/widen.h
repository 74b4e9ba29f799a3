// Block kernel for CPUs without dot products of bytes: weights become 16-bit integers in registers.
#pragma once
#include "rows.h"

namespace minivllm {
namespace MINIVLLM_ISA {

struct WidenKernel {
  using X = int16_t;
  static constexpr long kBlock = 4;
  static constexpr int kVectors = 2;
  static constexpr int kStripe = kVectors * kLanes;  // columns at once
  static constexpr long kExact = 512;                // so many products of 16 and 8 bits fit into a sum of 32

  // sums += x * one quad of k of kLanes columns.
  struct Quad {
#if defined(__AVX2__)
    __m256i even, odd;

    explicit Quad(const uint8_t* from) {
      const __m256i bytes = _mm256_xor_si256(_mm256_loadu_si256((const __m256i*)from), _mm256_set1_epi8((char)0x80));
      even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
      odd = _mm256_srai_epi16(bytes, 8);
    }
    void add(vi& sums, const X* x) const {
      int pairs[2];
      memcpy(pairs, x, sizeof pairs);
      sums += (vi)_mm256_madd_epi16(even, _mm256_set1_epi32(pairs[0]));
      sums += (vi)_mm256_madd_epi16(odd, _mm256_set1_epi32(pairs[1]));
    }
#else
    vi k[4];

    explicit Quad(const uint8_t* from) {
      vu bytes;  // as little-endian numbers whatever the machine
      for (int i = 0; i < kLanes; i++, from += 4) bytes[i] = from[0] | from[1] << 8 | from[2] << 16 | (uint32_t)from[3] << 24;
      MINIVLLM_UNROLL for (int i = 0; i < 4; i++) k[i] = (vi)(bytes >> (8 * i) & 255) - 128;
    }
    void add(vi& sums, const X* x) const { sums += k[0] * x[0] + k[2] * x[1] + k[1] * x[2] + k[3] * x[3]; }
#endif
  };

  template <int M>
  static void block(const X* x, long depth, const uint8_t* panel, float* out) {
    vf totals[M][kVectors] = {};
    for (long begin = 0; begin < depth; begin += kExact) {
      const long end = min_of(depth, begin + kExact);
      vi sums[M][kVectors];
      MINIVLLM_UNROLL for (int r = 0; r < M; r++)
        MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) sums[r][v] = vi{};
#pragma GCC unroll 1
      for (long k = begin; k < end; k += 4) {
        MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) {
          const Quad quad(panel + k * kPanel + v * kLanes * 4);
          MINIVLLM_UNROLL for (int r = 0; r < M; r++) quad.add(sums[r][v], x + r * depth + k);
        }
      }
      MINIVLLM_UNROLL for (int r = 0; r < M; r++)
        MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) totals[r][v] += __builtin_convertvector(sums[r][v], vf);
    }
    for (int r = 0; r < M; r++)
      for (int v = 0; v < kVectors; v++) store(out + r * kPanel + v * kLanes, totals[r][v]);
  }

  // Rows [begin, end) of x times one panel.
  static void multiply(const GemmInt8Args& a, const QuantizedRows<X>& x, const uint8_t* panel, long begin, long end,
                       long column) {
    alignas(64) float sums[kBlock * kPanel];
    for (long row = begin; row < end; row += kBlock) {
      const long rows = min_of(kBlock, end - row);
      const X* from = x.data + row * x.depth;
      for (long stripe = 0; stripe < kPanel; stripe += kStripe) {
        if (rows == kBlock) {
          block<kBlock>(from, x.depth, panel + stripe * 4, sums + stripe);
        } else {
          for (long r = 0; r < rows; r++) block<1>(from + r * x.depth, x.depth, panel + stripe * 4, sums + r * kPanel + stripe);
        }
      }
      for (long r = 0; r < rows; r++) store_row(sums + r * kPanel, a, x.facts[row + r].scale, row + r, column);
    }
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
