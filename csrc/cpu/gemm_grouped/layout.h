// Where things are in the packed weight of gemm_grouped.cpp, and a group of it as numbers.
#pragma once
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

// Bits of a value, how many values share a scale, and whether values are codes: indices into a table of numbers, which for 8 bits
// is that of FP8 (e4m3) in units of 2^-8.
template <int kBits_, int kGroup_, bool kCoded_ = false>
struct Grouping {
  static constexpr int kBits = kBits_, kGroup = kGroup_, kQuads = kGroup / 4;
  static constexpr bool kCoded = kCoded_;
  static constexpr long kValueBytes = kPanel * kGroup * kBits / 8, kBytes = kValueBytes + 2 * kPanel * 2;

  MINIVLLM_INLINE const F16* scales_of(const uint8_t* group) { return (const F16*)(group + kValueBytes); }
  MINIVLLM_INLINE const F16* least_of(const uint8_t* group) { return scales_of(group) + kPanel; }

  // The four values of one column and one quad of k.
  MINIVLLM_INLINE const uint8_t* quad_of(const uint8_t* group, long quad, long column) {
    return group + ((kBits == 4 ? quad / 2 : quad) * kPanel + column) * 4;
  }

  MINIVLLM_INLINE float value_of(const uint8_t* bytes, long quad, int place, const float* table) {
    const int value = kBits == 4 ? bytes[place] >> (quad % 2 * 4) & 15 : bytes[place];
    return kCoded ? table[value] : (float)value;
  }
};

template <class Run>
static void with_grouping(int bits, int group, bool coded, const Run& run) {
  if (coded) return bits == 4 ? run(Grouping<4, 32, true>{}) : run(Grouping<8, 32, true>{});
  if (group == 16) return bits == 4 ? run(Grouping<4, 16>{}) : run(Grouping<8, 16>{});
  return bits == 4 ? run(Grouping<4, 32>{}) : run(Grouping<8, 32>{});
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
