// What the block kernels of gemm_int8.cpp share: x in 16 bits, and the way results leave.
#pragma once
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr float kTop16 = 127 * 256;   // of a quantized x: its upper byte stays within [-127, 127]
constexpr float kNothing = 1e-30f;    // a row or column without anything larger is zero

// What turns integer sums of one row back into numbers.
struct RowFacts {
  float scale;
  int32_t high, low;  // 128 times the sum of the upper and of the lower bytes: what the offset of the weights added
};

// x as a block kernel reads it, k padded with zeros to `depth`.
template <class X>
struct QuantizedRows {
  X* data;
  RowFacts* facts;
  long depth;
};

MINIVLLM_INLINE vi round_to_int(vf v) {
#if defined(__AVX512F__)
  return (vi)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
  return (vi)_mm256_cvtps_epi32((__m256)v);
#else
  vi rounded;
  for (int i = 0; i < kLanes; i++) rounded[i] = (int32_t)__builtin_lrintf(v[i]);
  return rounded;
#endif
}

template <class T>
MINIVLLM_INLINE vf load_up_to(const T* from, long count) {
  return count >= kLanes ? load(from) : count > 0 ? load_n(from, count) : vf{};
}

// The largest magnitude; NaN if there is a NaN or an infinity.
template <class T>
static inline float largest(const T* x, long k) {
  vf top{}, broken{};
  for (long i = 0; i < k; i += kLanes) {
    const vf v = load_up_to(x + i, k - i);
    top = vmax((vf)((vi)v & 0x7fffffff), top);
    broken += v - v;
  }
  return reduce_max(top) + reduce_add(broken);
}

// Numbers -> integers within [-top, top], four to a quad; `result * scale` are the numbers again.
struct Quantizer {
  float scale, inverse;

  Quantizer(float largest, float top) : scale(largest / top), inverse(top / largest) {
    if (largest < kNothing) scale = inverse = 0;
  }
  template <class T>
  vi operator()(const T* x, long count) const {
    return round_to_int(load_up_to(x, count) * inverse);
  }
};

#if defined(__AVX512F__)
// As bytes: row 2r of `rows` has the upper ones of row r of x, row 2r + 1 the lower ones.
template <class T>
static inline void quantize_row(const T* x, long k, long row, const QuantizedRows<int8_t>& rows) {
  const Quantizer quantizer(largest(x, k), kTop16);
  int8_t *high = rows.data + 2 * row * rows.depth, *low = high + rows.depth;
  vi sum{}, sum_high{};
  for (long i = 0; i < rows.depth; i += kLanes) {
    const vi q = quantizer(x + i, k - i), upper = (q + 128) >> 8;
    _mm_storeu_si128((__m128i*)(high + i), _mm512_cvtepi32_epi8((__m512i)upper));
    _mm_storeu_si128((__m128i*)(low + i), _mm512_cvtepi32_epi8((__m512i)q));
    sum += q;
    sum_high += upper;
  }
  const int32_t all = _mm512_reduce_add_epi32((__m512i)sum), upper = _mm512_reduce_add_epi32((__m512i)sum_high);
  rows.facts[row] = {quantizer.scale, 128 * upper, 128 * (all - 256 * upper)};
}
#endif

// As 16-bit integers, each quad in the order k0 k2 k1 k3.
template <class T>
static inline void quantize_row(const T* x, long k, long row, const QuantizedRows<int16_t>& rows) {
  const Quantizer quantizer(largest(x, k), kTop16);
  int16_t* to = rows.data + row * rows.depth;
  for (long i = 0; i < rows.depth; i += kLanes) {
    const vi q = quantizer(x + i, k - i);
    for (int j = 0; j < kLanes; j++) to[i + j / 4 * 4 + j % 4 % 2 * 2 + j % 4 / 2] = (int16_t)q[j];
  }
  rows.facts[row] = {quantizer.scale, 0, 0};
}

template <class T>
MINIVLLM_INLINE void store_row_as(const float* sums, const GemmInt8Args& a, float scale, long row, long column) {
  T* y = (T*)a.y + row * a.n + column;
  const T* bias = a.bias ? (const T*)a.bias + column : nullptr;
  const long columns = min_of(kPanel, a.n - column);
  for (long i = 0; i < columns; i += kLanes) {
    vf v = load(sums + i) * scale * load(a.scales + column + i);
    if (bias) v += load_up_to(bias + i, columns - i);
    if (columns - i >= kLanes) {
      store(y + i, v);
    } else {
      store_n(y + i, v, columns - i);
    }
  }
}

// Integer sums of one row and one panel, as floats -> y; `column` is the panel's first.
MINIVLLM_INLINE void store_row(const float* sums, const GemmInt8Args& a, float scale, long row, long column) {
  switch (a.dtype) {
    case DType::f32: return store_row_as<float>(sums, a, scale, row, column);
    case DType::bf16: return store_row_as<Bf16>(sums, a, scale, row, column);
    case DType::f16: return store_row_as<F16>(sums, a, scale, row, column);
    default: break;  // types of a cache only
  }
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
