// y = x @ w.T + bias in bf16 with fp32 accumulation, weights packed once.
//
// Packed weight: panels of 32 output columns, one after another. A panel is one contiguous stream over k:
//   k pair 0: column 0 (k0 k1) | column 1 (k0 k1) | ... | column 31 (k0 k1)      128 bytes
//   k pair 1: ...
// That is the operand of vdpbf16ps (16 columns a register), of an AMX tile (16 pairs x 16 columns, rows 128 bytes apart),
// and, by shift and mask, two fp32 vectors for everything older. Columns and k are padded with zeros to multiples of 32.
#include "ops.h"
#include "parallel.h"
#include "simd.h"
#if defined(__AMX_BF16__)
#include "gemm_tile.h"
#elif defined(__AVX512BF16__)
#include "gemm_dot.h"
#else
#include "gemm_widen.h"
#endif

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long kChunksPerThread = 16;
constexpr long kRowsAtOnce = 256;  // rows of x that stay in the second-level cache while the panels pass by

// A row of x for kernels that cannot read it as it is: k padded with zeros, in their type.
MINIVLLM_INLINE void prepare_row(const Bf16* from, uint16_t* to, long k, long depth) {
  memcpy(to, from, k * sizeof *to);
  memset(to + k, 0, (depth - k) * sizeof *to);
}

MINIVLLM_INLINE void prepare_row(const Bf16* from, float* to, long k, long depth) {
  for (long i = 0; i < depth; i += kLanes) {
    const long count = min_of(kLanes, k - i);
    store(to + i, count == kLanes ? load(from + i) : count > 0 ? load_n(from + i, count) : vf{});
  }
}

static void multiply_all(const GemmArgs& a, const Rows<Kernel::X>& x) {
  const long panels = (a.n + kPanel - 1) / kPanel, chunks = (a.m + kRowsAtOnce - 1) / kRowsAtOnce;
  parallel_for(chunks * panels, 1, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const long row = i / panels * kRowsAtOnce, panel = i % panels;
      Kernel::multiply(a, x, a.w + panel * kPanel * x.depth, row, min_of(row + kRowsAtOnce, a.m), panel * kPanel);
    }
  }, kChunksPerThread);
}

void gemm(const GemmArgs& a) {
  const long depth = round_up(a.k, kDepth);
  if (sizeof(Kernel::X) == sizeof(*a.x) && depth == a.k) return multiply_all(a, {(const Kernel::X*)a.x, a.ldx, depth});
  static thread_local Scratch scratch;
  Kernel::X* x = (Kernel::X*)scratch.floats(a.m * depth);
  parallel_for(a.m, max_of(1, 32768 / depth), [&](long begin, long end) {
    for (long row = begin; row < end; row++) prepare_row((const Bf16*)a.x + row * a.ldx, x + row * depth, a.k, depth);
  });
  multiply_all(a, {x, depth, depth});
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
