// y = x @ w.T + bias in fp32 or fp16, in fp32 arithmetic, with weights as gemm.cpp packs them. Each result is one sum over k in
// its order, so it does not depend on the batch that its row is in.
#include <utility>
#include "gemm_store.h"
#include "ops.h"
#include "parallel.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr int kVectors = kLanes == 4 ? 4 : 2;
constexpr int kStripe = kVectors * kLanes;      // columns at once,
constexpr long kBlock = kLanes == 16 ? 12 : 4;  // rows at once,
constexpr long kRowsAtOnce = 128;               // and rows of x that stay in the second-level cache meanwhile
constexpr long kChunksPerThread = 16;

template <class T, int M>
static void block(const Rows<float>& x, const T* panel, long row, float* out) {
  const float* from = x.data + row * x.stride;
  vf sums[M][kVectors];
  MINIVLLM_UNROLL for (int r = 0; r < M; r++)
    MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) sums[r][v] = vf{};
#pragma GCC unroll 1
  for (long k = 0; k < x.depth; k++, panel += kPanel) {
    vf weights[kVectors];
    MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) weights[v] = load(panel + v * kLanes);
    MINIVLLM_UNROLL for (int r = 0; r < M; r++)
      MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) sums[r][v] += from[r * x.stride + k] * weights[v];
  }
  MINIVLLM_UNROLL for (int r = 0; r < M; r++)
    MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) store(out + r * kPanel + v * kLanes, sums[r][v]);
}

// Rows [begin, end) of x times one panel, in blocks of nearly equal height.
template <class T, size_t... kLess>
static void multiply(const GemmArgs& a, const Rows<float>& x, const T* panel, long begin, long end, long column,
                     std::index_sequence<kLess...>) {
  using Block = void (*)(const Rows<float>&, const T*, long, float*);
  static constexpr Block blocks[] = {block<T, kLess + 1>...};
  alignas(64) float sums[kBlock * kPanel];
  const long parts = (end - begin + kBlock - 1) / kBlock;
  for (long part = 0; part < parts; part++) {
    const long from = begin + (end - begin) * part / parts, to = begin + (end - begin) * (part + 1) / parts;
    for (long stripe = 0; stripe < kPanel; stripe += kStripe) blocks[to - from - 1](x, panel + stripe, from, sums + stripe);
    for (long row = from; row < to; row++) store_row<T>(sums + (row - from) * kPanel, a, row, column);
  }
}

static Rows<float> rows_of(const GemmArgs& a, const float* x) { return {x, a.ldx, a.k}; }

static Rows<float> rows_of(const GemmArgs& a, const F16* x) {
  static thread_local Scratch scratch;
  const long stride = round_up(a.k, kLanes);
  float* to = scratch.floats(a.m * stride);
  parallel_for(a.m, max_of(1, 32768 / stride), [&](long begin, long end) {
    for (long row = begin; row < end; row++)
      for (long k = 0; k < a.k; k += kLanes) {
        const F16* from = x + row * a.ldx + k;
        store(to + row * stride + k, a.k - k < kLanes ? load_n(from, a.k - k) : load(from));
      }
  });
  return {to, stride, a.k};
}

template <class T>
void gemm_float(const GemmArgs& a) {
  const Rows<float> x = rows_of(a, (const T*)a.x);
  const long panels = (a.n + kPanel - 1) / kPanel, chunks = (a.m + kRowsAtOnce - 1) / kRowsAtOnce;
  const long size = round_up(a.k, kDepth) * kPanel;
  parallel_for(chunks * panels, 1, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const long row = i / panels * kRowsAtOnce, panel = i % panels;
      multiply(a, x, (const T*)a.w + panel * size, row, min_of(row + kRowsAtOnce, a.m), panel * kPanel,
               std::make_index_sequence<kBlock>());
    }
  }, kChunksPerThread);
}

template void gemm_float<float>(const GemmArgs&);
template void gemm_float<F16>(const GemmArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
