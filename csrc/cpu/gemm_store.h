// What the block kernels of gemm.cpp share: their operand and the way results leave.
#pragma once
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

// x as a block kernel reads it: k padded with zeros to `depth`, rows `stride` elements apart.
template <class X>
struct Rows {
  const X* data;
  long stride, depth;
};

// fp32 results of one row and one panel -> bf16 in y, with bias; `column` is the panel's first.
MINIVLLM_INLINE void store_row(const float* sums, const GemmArgs& a, long row, long column) {
  Bf16* y = (Bf16*)a.y + row * a.n + column;
  const Bf16* bias = a.bias ? (const Bf16*)a.bias + column : nullptr;
  const long columns = min_of(kPanel, a.n - column);
#if defined(__AVX512BF16__)
  if (columns == kPanel) {
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
