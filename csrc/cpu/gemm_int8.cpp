// y = x @ w.T + bias with weights in 8 bits, one scale per column of y, and x in 16 bits, one scale per row, found on the fly.
//
// 16 bits of x cost no bandwidth, and in 8 outliers would ruin the rest of their row. Products of bytes serve all the same:
// x = 256 * high + low, both signed bytes, so a row of x is two rows of bytes. Sums are exact integers: a result does not
// depend on the batch that its row is in.
//
// Packed weight: panels of 32 output columns, one after another. A panel is one contiguous stream over k:
//   k quad 0: column 0 (k0 k1 k2 k3) | column 1 (k0 k1 k2 k3) | ... | column 31 (k0 k1 k2 k3)      128 bytes
//   k quad 1: ...
// That is the operand of vpdpbusd (16 columns a register) and of an AMX tile (16 quads x 16 columns, rows 128 bytes apart).
// Bytes hold w + 128, since vpdpbusd wants one of its operands unsigned; 128 * sum(x) is taken off at the end. Columns and k
// are padded with zeros (bytes of 128) to multiples of 32 and 64.
#include "ops.h"
#include "parallel.h"
#if defined(__AMX_INT8__)
#include "gemm_int8/tile.h"
#elif defined(__AVX512VNNI__)
#include "gemm_int8/dot.h"
#else
#include "gemm_int8/widen.h"
#endif

namespace minivllm {
namespace MINIVLLM_ISA {

#if defined(__AMX_INT8__)
constexpr long kTileRows = 3;  // from here on tiles are faster than registers
using X = int8_t;
constexpr long kPerRow = 2;
#elif defined(__AVX512VNNI__)
using X = DotKernel::X;
constexpr long kPerRow = 2;
#else
using X = WidenKernel::X;
constexpr long kPerRow = 1;
#endif
constexpr long kChunksPerThread = 16;
constexpr long kRowsAtOnce = 256;  // rows of x that stay in the second-level cache while the panels pass by

template <class K>
static void multiply_all(const GemmInt8Args& a, const QuantizedRows<X>& x) {
  const long panels = (a.n + kPanel - 1) / kPanel, chunks = (a.m + kRowsAtOnce - 1) / kRowsAtOnce;
  parallel_for(chunks * panels, 1, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const long row = i / panels * kRowsAtOnce, panel = i % panels;
      K::multiply(a, x, a.w + panel * kPanel * x.depth, row, min_of(row + kRowsAtOnce, a.m), panel * kPanel);
    }
  }, kChunksPerThread);
}

template <class T>
static void quantize_rows(const GemmInt8Args& a, const QuantizedRows<X>& x) {
  parallel_for(a.m, max_of(1, 16384 / x.depth), [&](long begin, long end) {
    for (long row = begin; row < end; row++) quantize_row((const T*)a.x + row * a.ldx, a.k, row, x);
  });
}

void gemm_int8(const GemmInt8Args& a) {
  static thread_local Scratch data, facts;
  const long depth = round_up(a.k, kDepthInt8);
  const QuantizedRows<X> x = {(X*)data.floats(a.m * depth * kPerRow * (long)sizeof(X) / 4),
                              (RowFacts*)facts.floats(a.m * (long)(sizeof(RowFacts) / 4)), depth};
  switch (a.dtype) {
    case DType::f32: quantize_rows<float>(a, x); break;
    case DType::bf16: quantize_rows<Bf16>(a, x); break;
    case DType::f16: quantize_rows<F16>(a, x); break;
    default: break;  // types of a cache only
  }
#if defined(__AMX_INT8__)
  a.m < kTileRows ? multiply_all<DotKernel>(a, x) : multiply_all<TileKernel>(a, x);
#elif defined(__AVX512VNNI__)
  multiply_all<DotKernel>(a, x);
#else
  multiply_all<WidenKernel>(a, x);
#endif
}

// Columns of a panel, quantized, side by side in memory -> interleaved by quads.
template <class T>
static void pack_panel(const T* w, uint8_t* packed, float* scales, long columns, long k) {
  const long depth = round_up(k, kDepthInt8);
  static thread_local Scratch scratch;
  uint8_t* bytes = (uint8_t*)scratch.floats(kPanel * depth / 4);
  memset(bytes, 128, kPanel * depth);
  for (long column = 0; column < columns; column++) {
    const T* from = w + column * k;
    uint8_t* to = bytes + column * depth;
    const Quantizer quantizer(largest(from, k), 127);
    scales[column] = quantizer.scale;
    for (long i = 0; i < k; i += kLanes) {
      const vi q = quantizer(from + i, k - i) + 128;
#if defined(__AVX512F__)
      _mm_storeu_si128((__m128i*)(to + i), _mm512_cvtepi32_epi8((__m512i)q));
#else
      for (int j = 0; j < kLanes; j++) to[i + j] = (uint8_t)q[j];
#endif
    }
  }
  for (long column = columns; column < kPanel; column++) scales[column] = 0;
  for (long quad = 0; quad < depth / 4; quad++)
    for (long column = 0; column < kPanel; column++) memcpy(packed + (quad * kPanel + column) * 4, bytes + column * depth + quad * 4, 4);
}

template <class T>
static void pack_all(const T* w, uint8_t* packed, float* scales, long n, long k) {
  const long depth = round_up(k, kDepthInt8);
  parallel_for((n + kPanel - 1) / kPanel, 1, [&](long begin, long end) {
    for (long panel = begin; panel < end; panel++) {
      const long column = panel * kPanel;
      pack_panel(w + column * k, packed + column * depth, scales + column, min_of(kPanel, n - column), k);
    }
  });
}

void gemm_int8_pack(DType dtype, const void* w, uint8_t* packed, float* scales, long n, long k) {
  switch (dtype) {
    case DType::f32: return pack_all((const float*)w, packed, scales, n, k);
    case DType::bf16: return pack_all((const Bf16*)w, packed, scales, n, k);
    case DType::f16: return pack_all((const F16*)w, packed, scales, n, k);
    default: break;  // types of a cache only
  }
}

template <class T>
static void copy_rows(const uint8_t* packed, const float* scales, const int64_t* indices, T* out, long count, long k) {
  const long depth = round_up(k, kDepthInt8);
  parallel_for(count, 16, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const uint8_t* from = packed + indices[i] / kPanel * kPanel * depth + indices[i] % kPanel * 4;
      for (long j = 0; j < k; j += kLanes) {
        vf v{};
        for (int lane = 0; lane < kLanes; lane++) v[lane] = (float)(from[(j + lane) / 4 * 4 * kPanel + (j + lane) % 4] - 128);
        v *= scales[indices[i]];
        if (k - j >= kLanes) {
          store(out + i * k + j, v);
        } else {
          store_n(out + i * k + j, v, k - j);
        }
      }
    }
  });
}

void gemm_int8_rows(DType dtype, const uint8_t* packed, const float* scales, const int64_t* indices, void* out, long count,
                    long k) {
  switch (dtype) {
    case DType::f32: return copy_rows(packed, scales, indices, (float*)out, count, k);
    case DType::bf16: return copy_rows(packed, scales, indices, (Bf16*)out, count, k);
    case DType::f16: return copy_rows(packed, scales, indices, (F16*)out, count, k);
    default: break;  // types of a cache only
  }
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
