// Few rows: values times bytes of x on vpdpbusd, a group's sums scaled as they are finished. The weights are read once, as they
// are, so that a single row takes the time of reading them.
#pragma once
#include "gemm_int8/rows.h"
#include "gemm_store.h"
#include "layout.h"

namespace minivllm {
namespace MINIVLLM_ISA {

// x in 16 bits as upper and lower bytes (gemm_int8/rows.h), and the sum of each group of it, which the group's least multiplies.
struct GroupedRows {
  QuantizedRows<int8_t> bytes;
  float* sums;  // [rows, groups]
};

static void quantize_grouped_row(const Bf16* x, long row, const GroupedRows& rows, long group) {
  const long depth = rows.bytes.depth, groups = depth / group;
  quantize_row(x, depth, row, rows.bytes);
  const int8_t *high = rows.bytes.data + 2 * row * depth, *low = high + depth;
  for (long g = 0; g < groups; g++) {
    int32_t upper = 0, lower = 0;
    for (long i = 0; i < group; i++) upper += high[g * group + i], lower += low[g * group + i];
    rows.sums[row * groups + g] = (float)(256 * upper + lower);
  }
}

template <class G, int M>
static void grouped_block(const GemmArgs& a, const GroupedRows& rows, const uint8_t* panel, long row, long column) {
  const long depth = rows.bytes.depth, groups = depth / G::kGroup;
  const __m512i low_half = _mm512_set1_epi8(15);
  __m512 totals[M][2];
  MINIVLLM_UNROLL for (int r = 0; r < M; r++) totals[r][0] = totals[r][1] = _mm512_setzero_ps();
#pragma GCC unroll 1
  for (long g = 0; g < groups; g++, panel += G::kBytes) {
    __m512i sums[2 * M][2];
    MINIVLLM_UNROLL for (int r = 0; r < 2 * M; r++) sums[r][0] = sums[r][1] = _mm512_setzero_si512();
    MINIVLLM_UNROLL for (int quad = 0; quad < G::kQuads; quad++) {
      MINIVLLM_UNROLL for (int half = 0; half < 2; half++) {
        __m512i values = _mm512_loadu_si512(G::quad_of(panel, quad, half * 16));
        if (G::kBits == 4) values = _mm512_and_si512(quad % 2 ? _mm512_srli_epi16(values, 4) : values, low_half);
        MINIVLLM_UNROLL for (int r = 0; r < 2 * M; r++) {
          int bytes;
          memcpy(&bytes, rows.bytes.data + (2 * row + r) * depth + g * G::kGroup + quad * 4, 4);
          sums[r][half] = _mm512_dpbusd_epi32(sums[r][half], values, _mm512_set1_epi32(bytes));
        }
      }
    }
    MINIVLLM_UNROLL for (int half = 0; half < 2; half++) {
      const __m512 scale = (__m512)load(G::scales_of(panel) + half * 16);
      const __m512 least = (__m512)load(G::least_of(panel) + half * 16);
      MINIVLLM_UNROLL for (int r = 0; r < M; r++) {
        const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(sums[2 * r][half], 8), sums[2 * r + 1][half]);
        const __m512 of_x = _mm512_set1_ps(rows.sums[(row + r) * groups + g]);
        totals[r][half] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, totals[r][half]);
        totals[r][half] = _mm512_fmadd_ps(of_x, least, totals[r][half]);
      }
    }
  }
  MINIVLLM_UNROLL for (int r = 0; r < M; r++) {
    alignas(64) float out[kPanel];
    const __m512 scale = _mm512_set1_ps(rows.bytes.facts[row + r].scale);
    _mm512_store_ps(out, _mm512_mul_ps(totals[r][0], scale));
    _mm512_store_ps(out + 16, _mm512_mul_ps(totals[r][1], scale));
    store_row(out, a, row + r, column);
  }
}

constexpr long kDotRows = 4;       // at once
constexpr long kMostDotRows = 12;  // for more, expanding the panels to bf16 is faster

template <class G>
static void multiply_by_dots(const GemmArgs& a, const uint8_t* w) {
  static thread_local Scratch data, facts, sums;
  const long groups = a.k / G::kGroup;
  const GroupedRows rows = {{(int8_t*)data.floats(a.m * 2 * a.k / 4), (RowFacts*)facts.floats(a.m * 3), a.k},
                            sums.floats(a.m * groups)};
  for (long row = 0; row < a.m; row++) quantize_grouped_row((const Bf16*)a.x + row * a.ldx, row, rows, G::kGroup);
  using Block = void (*)(const GemmArgs&, const GroupedRows&, const uint8_t*, long, long);
  static constexpr Block blocks[] = {grouped_block<G, 1>, grouped_block<G, 2>, grouped_block<G, 3>, grouped_block<G, 4>};
  parallel_for((a.n + kPanel - 1) / kPanel, 1, [&](long begin, long end) {
    for (long panel = begin; panel < end; panel++)
      for (long row = 0; row < a.m; row += kDotRows)
        blocks[min_of(kDotRows, a.m - row) - 1](a, rows, w + panel * groups * G::kBytes, row, panel * kPanel);
  });
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
