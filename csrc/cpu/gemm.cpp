// y = x @ w.T + bias in bf16 with fp32 accumulation, weights packed once; and the packing of all types.
//
// Packed weight: panels of 32 output columns, one after another. A panel is one contiguous stream over k:
//   k pair 0: column 0 (k0 k1) | column 1 (k0 k1) | ... | column 31 (k0 k1)      128 bytes
//   k pair 1: ...
// That is the operand of vdpbf16ps (16 columns a register), of an AMX tile (16 pairs x 16 columns, rows 128 bytes apart),
// and, by shift and mask, two fp32 vectors for everything older. Columns and k are padded with zeros to multiples of 32.
// Other types, which gemm_float.cpp multiplies, have no use for pairs: the 32 columns of k0, then those of k1, ...
#include "gemm_panels.h"

namespace minivllm {
namespace MINIVLLM_ISA {

void gemm(const GemmArgs& a) {
  const long depth = round_up(a.k, kDepth);
  multiply_panels(a, [&](long panel) { return (const uint16_t*)a.w + panel * kPanel * depth; });
}

template <class T>
constexpr long kTogether = 1;  // values of a column that are neighbours
template <>
constexpr long kTogether<Bf16> = 2;

template <class T>
MINIVLLM_INLINE long place(long k, long column) {
  return k / kTogether<T> * kTogether<T> * kPanel + column * kTogether<T> + k % kTogether<T>;
}

template <class T>
void gemm_pack(const void* w, void* packed, long n, long k) {
  const long depth = round_up(k, kDepth);
  parallel_for((n + kPanel - 1) / kPanel, 1, [&](long begin, long end) {
    for (long panel = begin; panel < end; panel++) {
      T* to = (T*)packed + panel * kPanel * depth;
      memset(to, 0, kPanel * depth * sizeof(T));
      const long columns = min_of(kPanel, n - panel * kPanel);
      for (long column = 0; column < columns; column++) {
        const T* from = (const T*)w + (panel * kPanel + column) * k;
        for (long i = 0; i < k; i++) to[place<T>(i, column)] = from[i];
      }
    }
  });
}

template <class T>
void gemm_rows(const void* packed, const int64_t* indices, void* out, long count, long k) {
  const long depth = round_up(k, kDepth);
  parallel_for(count, 16, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const T* panel = (const T*)packed + indices[i] / kPanel * kPanel * depth;
      for (long j = 0; j < k; j++) ((T*)out)[i * k + j] = panel[place<T>(j, indices[i] % kPanel)];
    }
  });
}

#define MINIVLLM_PACKING(T)                                              \
  template void gemm_pack<T>(const void* w, void* packed, long n, long k); \
  template void gemm_rows<T>(const void* packed, const int64_t* indices, void* out, long count, long k);
MINIVLLM_PACKING(float)
MINIVLLM_PACKING(Bf16)
MINIVLLM_PACKING(F16)

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
