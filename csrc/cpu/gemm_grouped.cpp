// y = x @ w.T + bias in bf16 with weights of 4 or 8 bits, a scale and a least value for every 32 of a row: the formats Q4_0,
// Q4_1 and Q8_0 of GGUF, and what GPTQ and AWQ come to. weight = value * scale + least.
//
// Packed weight: panels of 32 output columns, one after another. A panel is one contiguous stream over groups of 32 k:
//   values  4 bits: k quads 0 and 1: column 0 (k0 | k4 << 4, k1 | k5 << 4, ...) | column 1 ... | column 31      128 bytes
//                   k quads 2 and 3: ...                                                             4 times, 512 bytes
//           8 bits: k quad 0: column 0 (k0 k1 k2 k3) | column 1 ... | column 31             128 bytes, 8 times, 1024 bytes
//   scales  fp16 of the 32 columns
//   least   fp16 of the 32 columns
// Few rows multiply the values as they are, x in 16 bits. For more rows a panel is expanded to bf16 and goes the way of gemm.cpp,
// with exactly the result of a weight unpacked to bf16 from the beginning; so it does on CPUs without vpdpbusd.
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

// A group as the 16 k pairs of a bf16 panel.
template <int kBits>
static void expand_group(const uint8_t* group, uint16_t* to) {
#if defined(__AVX512F__)
  const __m512i low_half = _mm512_set1_epi32(kBits == 4 ? 15 : 255);
  for (int half = 0; half < 2; half++) {
    const vf scale = load(scales_of(group, kBits) + half * 16), least = load(least_of(group, kBits) + half * 16);
    for (long quad = 0; quad < kQuads; quad++) {
      __m512i bytes = _mm512_loadu_si512(quad_of<kBits>(group, quad, half * 16));
      if (kBits == 4 && quad % 2) bytes = _mm512_srli_epi32(bytes, 4);
      __m512 k[4];
      MINIVLLM_UNROLL for (int i = 0; i < 4; i++) {
        const __m512i value = _mm512_and_si512(_mm512_srli_epi32(bytes, 8 * i), low_half);
        k[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(value), (__m512)scale, (__m512)least);
      }
      MINIVLLM_UNROLL for (int pair = 0; pair < 2; pair++)
        store_pairs(to + (quad * 2 + pair) * 2 * kPanel + half * 32, k[2 * pair], k[2 * pair + 1]);
    }
  }
#else
  float scale[kPanel], least[kPanel];
  for (long c = 0; c < kPanel; c += kLanes) {
    store(scale + c, load(scales_of(group, kBits) + c));
    store(least + c, load(least_of(group, kBits) + c));
  }
  for (long quad = 0; quad < kQuads; quad++) {
    for (long c = 0; c < kPanel; c += kLanes) {
      for (int i = 0; i < 4; i++) {
        vf value{};
        for (long lane = 0; lane < kLanes; lane++)
          value[lane] = (float)value_of<kBits>(quad_of<kBits>(group, quad, c + lane), quad, i);
        const vu bits = bf16_bits(value * load(scale + c) + load(least + c)) >> 16;
        for (long lane = 0; lane < kLanes; lane++) to[(quad * 2 + i / 2) * 2 * kPanel + (c + lane) * 2 + i % 2] = (uint16_t)bits[lane];
      }
    }
  }
#endif
}

template <int kBits>
static void multiply_expanded(const GemmArgs& a, const uint8_t* w) {
  const long groups = a.k / kGroup;
  multiply_panels(a, [&](long panel) {
    static thread_local Scratch scratch;
    uint16_t* to = (uint16_t*)scratch.floats(a.k * kPanel / 2);
    const uint8_t* from = w + panel * groups * group_bytes(kBits);
    for (long g = 0; g < groups; g++) expand_group<kBits>(from + g * group_bytes(kBits), to + g * kGroup * kPanel);
    return (const uint16_t*)to;
  });
}

void gemm_grouped(const GemmGroupedArgs& g) {
  const GemmArgs a = {g.x, nullptr, g.bias, g.y, g.m, g.n, g.k, g.ldx};
  if (a.m == 0) return;
#if defined(__AVX512VNNI__)
  if (a.m <= kMostDotRows) return g.bits == 4 ? multiply_by_dots<4>(a, g.w) : multiply_by_dots<8>(a, g.w);
#endif
  g.bits == 4 ? multiply_expanded<4>(a, g.w) : multiply_expanded<8>(a, g.w);
}

template <int kBits>
static void pack_panel(const GroupedWeight& w, long panel, uint8_t* to) {
  const long groups = w.k / kGroup, columns = min_of(kPanel, w.n - panel * kPanel), bytes = kGroup * kBits / 8;
  memset(to, 0, groups * group_bytes(kBits));
  for (long g = 0; g < groups; g++, to += group_bytes(kBits)) {
    for (long c = 0; c < columns; c++) {
      const long at = (panel * kPanel + c) * groups + g;
      const uint8_t* from = w.values + at * bytes;
      uint8_t* first = to + c * 4;
      if (kBits == 8) {
        for (long quad = 0; quad < kQuads; quad++) memcpy(first + quad * kPanel * 4, from + quad * 4, 4);
      } else {
        // Quads 0 to 3 are the low halves of the 16 bytes, 4 to 7 the high ones.
        for (long pair = 0; pair < kQuads / 2; pair++) {
          const int shift = pair < 2 ? 0 : 4;
          for (long i = 0; i < 4; i++) {
            const long k = pair % 2 * 8 + i;
            first[pair * kPanel * 4 + i] = (uint8_t)((from[k] >> shift & 15) | (from[k + 4] >> shift & 15) << 4);
          }
        }
      }
      memcpy(to + value_bytes(kBits) + c * 2, w.scales + at, 2);
      memcpy(to + value_bytes(kBits) + (kPanel + c) * 2, w.least + at, 2);
    }
  }
}

void gemm_grouped_pack(const GroupedWeight& w, uint8_t* packed) {
  const long size = w.k / kGroup * group_bytes(w.bits);
  parallel_for((w.n + kPanel - 1) / kPanel, 1, [&](long begin, long end) {
    for (long panel = begin; panel < end; panel++) {
      w.bits == 4 ? pack_panel<4>(w, panel, packed + panel * size) : pack_panel<8>(w, panel, packed + panel * size);
    }
  });
}

template <int kBits>
static void copy_row(const uint8_t* packed, long row, uint16_t* out, long k) {
  const long groups = k / kGroup, column = row % kPanel;
  const uint8_t* group = packed + row / kPanel * groups * group_bytes(kBits);
  for (long g = 0; g < groups; g++, group += group_bytes(kBits), out += kGroup) {
    F16 facts[kLanes] = {scales_of(group, kBits)[column], least_of(group, kBits)[column]};
    const vf both = load(facts);
    for (long i = 0; i < kGroup; i += kLanes) {
      vf value{};
      for (int lane = 0; lane < kLanes; lane++) {
        const long quad = (i + lane) / 4;
        value[lane] = (float)value_of<kBits>(quad_of<kBits>(group, quad, column), quad, (int)((i + lane) % 4));
      }
      store((Bf16*)out + i, value * both[0] + both[1]);
    }
  }
}

void gemm_grouped_rows(int bits, const uint8_t* packed, const int64_t* indices, uint16_t* out, long count, long k) {
  parallel_for(count, 16, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      bits == 4 ? copy_row<4>(packed, indices[i], out + i * k, k) : copy_row<8>(packed, indices[i], out + i * k, k);
    }
  });
}

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
