// Where things are in the packed weight of gemm_grouped.cpp, and a group of it as numbers.
#pragma once
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long value_bytes(int bits) { return kPanel * kGroup * bits / 8; }
constexpr long group_bytes(int bits) { return value_bytes(bits) + 2 * kPanel * 2; }
constexpr int kQuads = kGroup / 4;

MINIVLLM_INLINE const F16* scales_of(const uint8_t* group, int bits) { return (const F16*)(group + value_bytes(bits)); }
MINIVLLM_INLINE const F16* least_of(const uint8_t* group, int bits) { return scales_of(group, bits) + kPanel; }

// The four values of one column and one quad of k.
template <int kBits>
MINIVLLM_INLINE const uint8_t* quad_of(const uint8_t* group, long quad, long column) {
  return group + ((kBits == 4 ? quad / 2 : quad) * kPanel + column) * 4;
}

template <int kBits>
MINIVLLM_INLINE int value_of(const uint8_t* bytes, long quad, int place) {
  return kBits == 4 ? bytes[place] >> (quad % 2 * 4) & 15 : bytes[place];
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
