// The walk over panels that all products of bf16 rows share, whatever the panels come from.
#pragma once
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

// panel_at(i) gives panel i of the weight, as gemm.cpp shows it, to the thread that asks.
template <class PanelAt>
static void multiply_all(const GemmArgs& a, const Rows<Kernel::X>& x, const PanelAt& panel_at) {
  const long panels = (a.n + kPanel - 1) / kPanel, chunks = (a.m + kRowsAtOnce - 1) / kRowsAtOnce;
  parallel_for(chunks * panels, 1, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const long row = i / panels * kRowsAtOnce, panel = i % panels;
      Kernel::multiply(a, x, panel_at(panel), row, min_of(row + kRowsAtOnce, a.m), panel * kPanel);
    }
  });
}

template <class PanelAt>
static void multiply_panels(const GemmArgs& a, const PanelAt& panel_at) {
  const long depth = round_up(a.k, kDepth);
  if (sizeof(Kernel::X) == sizeof(Bf16) && depth == a.k) return multiply_all(a, {(const Kernel::X*)a.x, a.ldx, depth}, panel_at);
  static thread_local Scratch scratch;
  Kernel::X* x = (Kernel::X*)scratch.floats(a.m * depth);
  parallel_for(a.m, max_of(1, 32768 / depth), [&](long begin, long end) {
    for (long row = begin; row < end; row++) prepare_row((const Bf16*)a.x + row * a.ldx, x + row * depth, a.k, depth);
  });
  multiply_all(a, {x, depth, depth}, panel_at);
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
