// What the block kernels of gemm.cpp share: their operand and the way results leave.
#pragma once
#include <type_traits>
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

// x as a block kernel reads it: k padded with zeros to `depth`, rows `stride` elements apart.
template <class X>
struct Rows {
  const X* data;
  long stride, depth;
};

// fp32 results of one row and one panel -> y, with bias; `column` is the panel's first.
template <class T = Bf16>
MINIVLLM_INLINE void store_row(const float* sums, const GemmArgs& a, long row, long column) {
  T* y = (T*)a.y + row * a.n + column;
  const T* bias = a.bias ? (const T*)a.bias + column : nullptr;
  const long columns = min_of(kPanel, a.n - column);
#if defined(__AVX512BF16__)
  if (std::is_same<T, Bf16>::value && columns == kPanel) {
    vf left = load(sums), right = load(sums + 16);
    if (bias) left += load(bias), right += load(bias + 16);
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)right, (__m512)left);
    memcpy(y, &both, sizeof both);
    return;
  }
#endif
  for (long i = 0; i < columns; i += kLanes) {
    const long count = min_of(kLanes, columns - i);
    const vf sum = load(sums + i);
    if (count == kLanes) {
      store(y + i, bias ? sum + load(bias + i) : sum);
    } else {
      store_n(y + i, bias ? sum + load_n(bias + i, count) : sum, count);
    }
  }
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
