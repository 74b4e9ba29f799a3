// y = x @ w.T + bias in bf16 with weights of 4 or 8 bits, a scale and a least value for every 32 or 16 of a row: what the
// formats of GGUF, GPTQ and AWQ come to. weight = value * scale + least.
//
// Packed weight: panels of 32 output columns, one after another. A panel is one contiguous stream over groups of 32 k (those of
// 16 k have half as many quads):
//   values  4 bits: k quads 0 and 1: column 0 (k0 | k4 << 4, k1 | k5 << 4, ...) | column 1 ... | column 31      128 bytes
//                   k quads 2 and 3: ...                                                             4 times, 512 bytes
//           8 bits: k quad 0: column 0 (k0 k1 k2 k3) | column 1 ... | column 31             128 bytes, 8 times, 1024 bytes
//   scales  fp16 of the 32 columns
//   least   fp16 of the 32 columns
// Few rows multiply the values as they are, x in 16 bits. For more rows a panel is expanded to bf16 and goes the way of gemm.cpp,
// with exactly the result of a weight unpacked to bf16 from the beginning; so it does on CPUs without vpdpbusd, and where values
// are codes.
#include "gemm_panels.h"
#include "gemm_grouped/layout.h"
#if defined(__AVX512VNNI__)
#include "gemm_grouped/dot.h"
#endif

namespace minivllm {
namespace MINIVLLM_ISA {

#if defined(__AVX512F__)
// Even and odd k of 16 columns as the pairs of a bf16 panel.
MINIVLLM_INLINE void store_pairs(uint16_t* to, __m512 even, __m512 odd) {
#if defined(__AVX512BF16__)
  const __m512i places = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                          _mm512_set1_epi32(16 << 16));
  const __m512i each = _mm512_or_si512(places, _mm512_slli_epi32(places, 16));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(each, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
#else
  const vu both = bf16_bits((vf)even) >> 16 | bf16_bits((vf)odd);
  memcpy(to, &both, sizeof both);
#endif
}
#endif

#if defined(__AVX512F__)
// 16 values, each in the lowest bits of 32, as numbers. FP8 in units of 2^-8 has the exponents of fp16.
template <class G>
MINIVLLM_INLINE __m512 numbers_of(__m512i values, const float* table) {
  if (!G::kCoded) return _mm512_cvtepi32_ps(values);
  if (G::kBits == 4) return _mm512_permutexvar_ps(values, _mm512_loadu_ps(table));
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(values, _mm512_set1_epi32(128)), 8);
  const __m512i rest = _mm512_slli_epi32(_mm512_and_si512(values, _mm512_set1_epi32(127)), 7);
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_or_si512(sign, rest)));
}
#endif

// A group as the 16 k pairs of a bf16 panel.
template <class G>
static void expand_group(const uint8_t* group, const float* table, uint16_t* to) {
#if defined(__AVX512F__)
  const __m512i low_half = _mm512_set1_epi32(G::kBits == 4 ? 15 : 255);
  for (int half = 0; half < 2; half++) {
    const vf scale = load(G::scales_of(group) + half * 16), least = load(G::least_of(group) + half * 16);
    for (long quad = 0; quad < G::kQuads; quad++) {
      __m512i bytes = _mm512_loadu_si512(G::quad_of(group, quad, half * 16));
      if (G::kBits == 4 && quad % 2) bytes = _mm512_srli_epi32(bytes, 4);
      __m512 k[4];
      MINIVLLM_UNROLL for (int i = 0; i < 4; i++) {
        const __m512i value = _mm512_and_si512(_mm512_srli_epi32(bytes, 8 * i), low_half);
        k[i] = _mm512_fmadd_ps(numbers_of<G>(value, table), (__m512)scale, (__m512)least);
      }
      MINIVLLM_UNROLL for (int pair = 0; pair < 2; pair++)
        store_pairs(to + (quad * 2 + pair) * 2 * kPanel + half * 32, k[2 * pair], k[2 * pair + 1]);
    }
  }
#else
  float scale[kPanel], least[kPanel];
  for (long c = 0; c < kPanel; c += kLanes) {
    store(scale + c, load(G::scales_of(group) + c));
    store(least + c, load(G::least_of(group) + c));
  }
  for (long quad = 0; quad < G::kQuads; quad++) {
    for (long c = 0; c < kPanel; c += kLanes) {
      for (int i = 0; i < 4; i++) {
        vf value{};
        for (long lane = 0; lane < kLanes; lane++)
          value[lane] = G::value_of(G::quad_of(group, quad, c + lane), quad, i, table);
        const vu bits = bf16_bits(value * load(scale + c) + load(least + c)) >> 16;
        for (long lane = 0; lane < kLanes; lane++) to[(quad * 2 + i / 2) * 2 * kPanel + (c + lane) * 2 + i % 2] = (uint16_t)bits[lane];
      }
    }
  }
#endif
}

template <class G>
static void multiply_expanded(const GemmArgs& a, const uint8_t* w, const float* table) {
  const long groups = a.k / G::kGroup;
  multiply_panels(a, [&](long panel) {
    static thread_local Scratch scratch;
    uint16_t* to = (uint16_t*)scratch.floats(a.k * kPanel / 2);
    const uint8_t* from = w + panel * groups * G::kBytes;
    for (long g = 0; g < groups; g++) expand_group<G>(from + g * G::kBytes, table, to + g * G::kGroup * kPanel);
    return (const uint16_t*)to;
  });
}

// The rows of x with their columns in another order.
static const uint16_t* in_order(const GemmGroupedArgs& g) {
  static thread_local Scratch scratch;
  uint16_t* to = (uint16_t*)scratch.floats((g.m * g.k + 1) / 2);
  parallel_for(g.m, max_of(1, 32768 / g.k), [&](long begin, long end) {
    for (long row = begin; row < end; row++)
      for (long i = 0; i < g.k; i++) to[row * g.k + i] = g.x[row * g.ldx + g.order[i]];
  });
  return to;
}

void gemm_grouped(const GemmGroupedArgs& g) {
  if (g.m == 0) return;
  const GemmArgs a = {g.order ? in_order(g) : g.x, nullptr, g.bias, g.y, g.m, g.n, g.k, g.order ? g.k : g.ldx};
  with_grouping(g.bits, g.group, g.table, [&](auto grouping) {
    using G = decltype(grouping);
#if defined(__AVX512VNNI__)
    if constexpr (!G::kCoded) {
      if (a.m <= kMostDotRows) return multiply_by_dots<G>(a, g.w);
    }
#endif
    multiply_expanded<G>(a, g.w, g.table);
  });
}

template <class G>
static void pack_panel(const GroupedWeight& w, long panel, uint8_t* to) {
  const long groups = w.k / G::kGroup, columns = min_of(kPanel, w.n - panel * kPanel), bytes = G::kGroup * G::kBits / 8;
  memset(to, 0, groups * G::kBytes);
  for (long g = 0; g < groups; g++, to += G::kBytes) {
    for (long c = 0; c < columns; c++) {
      const long at = (panel * kPanel + c) * groups + g;
      const uint8_t* from = w.values + at * bytes;
      uint8_t* first = to + c * 4;
      if (G::kBits == 8) {
        for (long quad = 0; quad < G::kQuads; quad++) memcpy(first + quad * kPanel * 4, from + quad * 4, 4);
      } else {
        // The first half of the quads are the low halves of the bytes, the other the high ones.
        for (long pair = 0; pair < G::kQuads / 2; pair++) {
          const int shift = pair * 2 < G::kQuads / 2 ? 0 : 4;
          for (long i = 0; i < 4; i++) {
            const long k = pair % (G::kQuads / 4) * 8 + i;
            first[pair * kPanel * 4 + i] = (uint8_t)((from[k] >> shift & 15) | (from[k + 4] >> shift & 15) << 4);
          }
        }
      }
      memcpy(to + G::kValueBytes + c * 2, w.scales + at, 2);
      memcpy(to + G::kValueBytes + (kPanel + c) * 2, w.least + at, 2);
    }
  }
}

void gemm_grouped_pack(const GroupedWeight& w, uint8_t* packed) {
  with_grouping(w.bits, w.group, false, [&](auto grouping) {
    using G = decltype(grouping);
    const long size = w.k / G::kGroup * G::kBytes;
    parallel_for((w.n + kPanel - 1) / kPanel, 1, [&](long begin, long end) {
      for (long panel = begin; panel < end; panel++) pack_panel<G>(w, panel, packed + panel * size);
    });
  });
}

template <class G>
static void copy_row(const uint8_t* packed, const float* table, long row, uint16_t* out, long k) {
  const long groups = k / G::kGroup, column = row % kPanel;
  const uint8_t* group = packed + row / kPanel * groups * G::kBytes;
  for (long g = 0; g < groups; g++, group += G::kBytes, out += G::kGroup) {
    F16 facts[kLanes] = {G::scales_of(group)[column], G::least_of(group)[column]};
    const vf both = load(facts);
    for (long i = 0; i < G::kGroup; i += kLanes) {
      vf value{};
      for (int lane = 0; lane < kLanes; lane++) {
        const long quad = (i + lane) / 4;
        value[lane] = G::value_of(G::quad_of(group, quad, column), quad, (int)((i + lane) % 4), table);
      }
      store((Bf16*)out + i, value * both[0] + both[1]);
    }
  }
}

void gemm_grouped_rows(int bits, int group, const uint8_t* packed, const float* table, const int64_t* indices, uint16_t* out,
                       long count, long k) {
  with_grouping(bits, group, table, [&](auto grouping) {
    parallel_for(count, 16, [&](long begin, long end) {
      for (long i = begin; i < end; i++) copy_row<decltype(grouping)>(packed, table, indices[i], out + i * k, k);
    });
  });
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
