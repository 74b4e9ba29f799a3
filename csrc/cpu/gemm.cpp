// y = x @ w.T + bias in bf16 with fp32 accumulation, weights packed once.
//
// Packed weight: panels of 32 output columns, one after another. A panel is one contiguous stream over k:
//   k pair 0: column 0 (k0 k1) | column 1 (k0 k1) | ... | column 31 (k0 k1)      128 bytes
//   k pair 1: ...
// That is the operand of vdpbf16ps (16 columns a register), of an AMX tile (16 pairs x 16 columns, rows 128 bytes apart),
// and, by shift and mask, two fp32 vectors for everything older. Columns and k are padded with zeros to multiples of 32.
#include "gemm_panels.h"

namespace minivllm {
namespace MINIVLLM_ISA {

void gemm(const GemmArgs& a) {
  const long depth = round_up(a.k, kDepth);
  multiply_panels(a, [&](long panel) { return a.w + panel * kPanel * depth; });
}

void gemm_pack(const uint16_t* w, uint16_t* packed, long n, long k) {
  const long depth = round_up(k, kDepth);
  parallel_for((n + kPanel - 1) / kPanel, 1, [&](long begin, long end) {
    for (long panel = begin; panel < end; panel++) {
      uint16_t* to = packed + panel * kPanel * depth;
      memset(to, 0, kPanel * depth * 2);
      const long columns = min_of(kPanel, n - panel * kPanel);
      for (long column = 0; column < columns; column++) {
        const uint16_t* from = w + (panel * kPanel + column) * k;
        for (long i = 0; i < k; i++) to[i / 2 * 2 * kPanel + column * 2 + i % 2] = from[i];
      }
    }
  });
}

void gemm_rows(const uint16_t* packed, const int64_t* indices, uint16_t* out, long count, long k) {
  const long depth = round_up(k, kDepth);
  parallel_for(count, 16, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const uint16_t* from = packed + indices[i] / kPanel * kPanel * depth + indices[i] % kPanel * 2;
      for (long j = 0; j < k; j++) out[i * k + j] = from[j / 2 * 2 * kPanel + j % 2];
    }
  });
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
