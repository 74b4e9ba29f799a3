// Vectors of floats as wide as the instruction set of this variant, with conversions from and to bf16 and fp16, and exp.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels.h"

#define MINIVLLM_INLINE static inline __attribute__((always_inline))
// gcc keeps local arrays of vectors in registers only if every loop over them is unrolled completely.
#define MINIVLLM_UNROLL _Pragma("GCC unroll 16")

namespace minivllm {
namespace MINIVLLM_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vh __attribute__((vector_size(kLanes * 2)));
typedef int8_t vb __attribute__((vector_size(kLanes)));
typedef uint8_t vub __attribute__((vector_size(kLanes)));

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct I8 {
  int8_t bits;
};
struct F8 {  // e4m3: no infinities
  uint8_t bits;
};

// How the KV cache lies in memory: for each block and KV head a page of block_size rows, all keys before all values. In int8 the
// rows of a page are followed by its fp32 scales, one for each.
template <class Cache>
struct PagesOf {
  static constexpr long kScaleBytes = 0;
};
template <>
struct PagesOf<I8> {
  static constexpr long kScaleBytes = sizeof(float);
};
template <class Cache>
constexpr bool kScaled = PagesOf<Cache>::kScaleBytes > 0;

// Elements of a page.
template <class Cache, class Args>
static inline __attribute__((always_inline)) long page_size(const Args& a) {
  return a.block_size * (a.head_dim + PagesOf<Cache>::kScaleBytes);
}

MINIVLLM_INLINE long min_of(long a, long b) { return a < b ? a : b; }
MINIVLLM_INLINE long max_of(long a, long b) { return a > b ? a : b; }
MINIVLLM_INLINE long round_up(long a, long step) { return (a + step - 1) / step * step; }

MINIVLLM_INLINE vf splat(float x) { return vf{} + x; }
MINIVLLM_INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }

template <class V, class P>
MINIVLLM_INLINE V load_bits(const P* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

// ---- loads and stores

MINIVLLM_INLINE vf load(const float* p) { return load_bits<vf>(p); }

MINIVLLM_INLINE vf load(const Bf16* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(__AVX2__)
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
  return (vf)(__builtin_convertvector(load_bits<vh>(p), vu) << 16);
#endif
}

#if !defined(__AVX2__)
MINIVLLM_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, body = h & 0x7fff;
  uint32_t bits = body << 13;
  float f;
  if (body >= 0x7c00) {
    bits += 0x70000000;  // infinity or NaN: exponent 31 -> 255
    memcpy(&f, &bits, 4);
  } else {
    memcpy(&f, &bits, 4);
    f *= 0x1p112f;  // moves the exponent bias from 15 to 127, subnormals included
  }
  memcpy(&bits, &f, 4);
  bits |= sign;
  memcpy(&f, &bits, 4);
  return f;
}

MINIVLLM_INLINE uint16_t float_to_half(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const uint16_t sign = (uint16_t)(bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded mantissa in the low bits
    memcpy(&f, &bits, 4);
    f += 0.5f;
    memcpy(&bits, &f, 4);
    return sign | (uint16_t)(bits - 0x3f000000);
  }
  bits += 0xfff + ((bits >> 13) & 1);
  return sign | (uint16_t)((bits - 0x38000000) >> 13);
}
#endif

MINIVLLM_INLINE vf load(const F16* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  vf v;
  for (int i = 0; i < kLanes; i++) v[i] = half_to_float(p[i].bits);
  return v;
#endif
}

MINIVLLM_INLINE vf load(const I8* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  return __builtin_convertvector(load_bits<vb>(p), vf);
#endif
}

MINIVLLM_INLINE vf load(const F8* p) {
  vh half = __builtin_convertvector(load_bits<vub>(p), vh);
  half = (half & 128) << 8 | ((half & 127) == 127 ? vh{} + 0x7e00 : (vh)((half & 127) << 7));  // too small by 2^8, or NaN
  F16 lanes[kLanes];
  memcpy(lanes, &half, sizeof half);
  return load(lanes) * 256.0f;
}

// v rounded to nearest even; what is beyond the largest, 448, becomes it, and NaN stays.
MINIVLLM_INLINE void store(F8* p, vf v) {
  const vu sign = (vu)v >> 24 & 128;
  const vf size = (vf)((vu)v & 0x7fffffffu), top = splat(448.0f);
  const vu bits = (vu)(size > top ? top : size);
  const vu normal = (bits + 0x7ffff + (bits >> 20 & 1)) >> 20;
  const vu small = (vu)((vf)bits + 16384.0f) - 0x46800000u;  // in units of 2^-9, in the low bits
  vu result = (vf)bits < splat(0x1p-6f) ? small : normal - (120 << 3);
  result = v == v ? result : vu{} + 127;
  const vub bytes = __builtin_convertvector(result | sign, vub);
  memcpy(p, &bytes, sizeof bytes);
}

// v rounded to whole numbers, which must fit.
MINIVLLM_INLINE void store(I8* p, vf v) {
#if defined(__AVX512F__)
  const __m128i whole = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)v));
#elif defined(__AVX2__)
  const vb whole = __builtin_convertvector((vi)_mm256_cvtps_epi32((__m256)v), vb);
#else
  const vb whole = __builtin_convertvector((vi)(v + 12582912.0f), vb);  // 1.5 * 2^23: the number is in the low bits
#endif
  memcpy(p, &whole, sizeof whole);
}

// Bits of v rounded to bf16 (nearest even, NaN stays NaN), in the upper half of each lane.
MINIVLLM_INLINE vu bf16_bits(vf v) {
  const vu bits = (vu)v;
  const vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  return v == v ? rounded : vu{} + 0x7fc00000u;
}

MINIVLLM_INLINE void store(float* p, vf v) { memcpy(p, &v, sizeof v); }

MINIVLLM_INLINE void store(Bf16* p, vf v) {
#if defined(__AVX512BF16__)
  const __m256bh h = _mm512_cvtneps_pbh((__m512)v);
#elif defined(__AVX512F__)
  const __m256i h = _mm512_cvtepi32_epi16((__m512i)(bf16_bits(v) >> 16));
#else
  const vh h = __builtin_convertvector(bf16_bits(v) >> 16, vh);
#endif
  memcpy(p, &h, sizeof h);
}

MINIVLLM_INLINE void store(F16* p, vf v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; i++) p[i].bits = float_to_half(v[i]);
#endif
}

// The first n lanes only; the others read as zero.
template <class T>
MINIVLLM_INLINE vf load_n(const T* p, long n) {
  T lanes[kLanes] = {};
  memcpy(lanes, p, n * sizeof(T));
  return load(lanes);
}

template <class T>
MINIVLLM_INLINE void store_n(T* p, vf v, long n) {
  T lanes[kLanes];
  store(lanes, v);
  memcpy(p, lanes, n * sizeof(T));
}

// v as it reads back after a store as T.
template <class T>
MINIVLLM_INLINE vf round_to(vf v) {
  T lanes[kLanes];
  store(lanes, v);
  return load(lanes);
}
template <>
inline __attribute__((always_inline)) vf round_to<float>(vf v) {
  return v;
}
template <>
inline __attribute__((always_inline)) vf round_to<Bf16>(vf v) {
#if defined(__AVX512BF16__)
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)v)), 16);
#else
  return (vf)bf16_bits(v);
#endif
}

// ---- reductions and functions

MINIVLLM_INLINE float reduce_add(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float sum = 0;
  for (int i = 0; i < kLanes; i++) sum += v[i];
  return sum;
#endif
}

MINIVLLM_INLINE float reduce_max(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float top = v[0];
  for (int i = 1; i < kLanes; i++) top = v[i] > top ? v[i] : top;
  return top;
#endif
}

// Whether a comparison holds in some lane.
MINIVLLM_INLINE bool any(vi mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)mask) != 0;
#else
  int32_t bits = 0;
  for (int i = 0; i < kLanes; i++) bits |= mask[i];
  return bits != 0;
#endif
}

// Sums of kLanes vectors, one per lane: result[i] = sum of the lanes of v[i].
MINIVLLM_INLINE vf reduce_each(const vf* v) {
#if defined(__AVX512F__)
  __m512 a[8], b[4];
  MINIVLLM_UNROLL for (int i = 0; i < 8; i++) {
    const __m512 x = (__m512)v[2 * i], y = (__m512)v[2 * i + 1];
    a[i] = _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
  }
  MINIVLLM_UNROLL for (int i = 0; i < 4; i++) {
    const __m512d x = (__m512d)a[2 * i], y = (__m512d)a[2 * i + 1];
    b[i] = _mm512_add_ps((__m512)_mm512_unpacklo_pd(x, y), (__m512)_mm512_unpackhi_pd(x, y));
  }
  // b[i] holds vectors 4i..4i+3 in each of four 128-bit lanes; add the lanes across.
  const __m512 p = _mm512_add_ps(_mm512_shuffle_f32x4(b[0], b[1], 0x44), _mm512_shuffle_f32x4(b[0], b[1], 0xee));
  const __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(b[2], b[3], 0x44), _mm512_shuffle_f32x4(b[2], b[3], 0xee));
  return (vf)_mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x88), _mm512_shuffle_f32x4(p, q, 0xdd));
#elif defined(__AVX2__)
  const __m256* x = (const __m256*)v;
  const __m256 p = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const __m256 q = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
  return (vf)_mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
#else
  vf sums;
  for (int i = 0; i < kLanes; i++) sums[i] = reduce_add(v[i]);
  return sums;
#endif
}

// e^x with a relative error below 2e-7; 0 below -87.3, infinity above 88.8.
MINIVLLM_INLINE vf vexp(vf x) {
  const vf low = splat(-87.3f), high = splat(88.7f);
#if defined(__AVX512F__)
  // Beyond the limits the final scaling gives 0 or infinity by itself; going far below avoids denormals, which cost 230 cycles.
  vf y = x < low ? splat(-1000.0f) : x;
  y = y > high ? high + 1.0f : y;
  const vf n = (vf)_mm512_roundscale_ps((__m512)(y * 1.44269504f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  vf y = x < low ? low : x;
  y = y > high ? high : y;
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const vf n = (y * 1.44269504f + magic) - magic;
#endif
  const vf r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  // Two factors, since n may be 128.
  const vi k = __builtin_convertvector(n, vi), half = k >> 1;
  const vf scaled = p * (vf)((half + 127) << 23) * (vf)((k - half + 127) << 23);
  vf result = x < low ? vf{} : scaled;
  result = x > high ? splat(__builtin_inff()) : result;
  return result;
#endif
}

MINIVLLM_INLINE vf vsigmoid(vf x) { return 1.0f / (1.0f + vexp(-x)); }

// from * factor, rounded.
template <class T>
static void write_as(const float* from, float factor, T* to, long n) {
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i) * factor);
  if (i < n) store_n(to + i, load_n(from + i, n - i) * factor, n - i);
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
