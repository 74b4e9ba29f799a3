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

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long kRowsAtOnce = 256;  // rows of x that stay in the second-level cache while the panels pass by

// One block of fp32 results -> bf16 rows of y, with bias; `columns` <= 32 are real.
MINIVLLM_INLINE void store_row(const float* sums, const GemmArgs& a, long row, long column, long columns) {
  Bf16* y = (Bf16*)a.y + row * a.n + column;
  const Bf16* bias = a.bias ? (const Bf16*)a.bias + column : nullptr;
  for (long i = 0; i < columns; i += kLanes) {
    const long count = min_of(kLanes, columns - i);
    vf sum = load(sums + i);
    if (count == kLanes) {
      store(y + i, bias ? sum + load(bias + i) : sum);
    } else {
      store_n(y + i, bias ? sum + load_n(bias + i, count) : sum, count);
    }
  }
}

#if defined(__AMX_BF16__)

// Results of up to 32 rows x 32 columns in four tiles: 0 1 / 2 3; tiles 4 and 5 hold rows of x, 6 and 7 halves of the panel.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  explicit TileConfig(long m) {
    const uint8_t upper = (uint8_t)min_of(16, m), lower = (uint8_t)max_of(1, m - 16);
    const uint8_t of_tile[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
    for (int i = 0; i < 8; i++) row_bytes[i] = 64, rows[i] = of_tile[i];
  }
};

static void tile_block(const GemmArgs& a, const uint16_t* x, long ldx, long depth, const uint16_t* panel, long rows, float* sums) {
  const long stride = ldx * 2;
  _tile_zero(0);
  _tile_zero(1);
  if (rows > 16) {
    _tile_zero(2);
    _tile_zero(3);
    const uint16_t* lower = x + 16 * ldx;
    for (long k = 0; k < depth; k += kDepth, panel += kDepth * kPanel) {
      _tile_loadd(6, panel, 128);
      _tile_loadd(4, x + k, stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, panel + 32, 128);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, lower + k, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, sums + 16 * kPanel, kPanel * 4);
    _tile_stored(3, sums + 16 * kPanel + 16, kPanel * 4);
  } else {
    for (long k = 0; k < depth; k += kDepth, panel += kDepth * kPanel) {
      _tile_loadd(4, x + k, stride);
      _tile_loadd(6, panel, 128);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, panel + 32, 128);
      _tile_dpbf16ps(1, 4, 7);
    }
  }
  _tile_stored(0, sums, kPanel * 4);
  _tile_stored(1, sums + 16, kPanel * 4);
  (void)a;
}

struct Panels {
  static constexpr long kBlock = 32;
  using X = uint16_t;

  // Rows [begin, end) of x times one panel.
  static void multiply(const GemmArgs& a, const X* x, long ldx, long depth, const uint16_t* panel, long begin, long end, long column) {
    alignas(64) float sums[kBlock * kPanel];
    const long columns = min_of(kPanel, a.n - column);
    long configured = 0;
    for (long row = begin; row < end; row += kBlock) {
      const long rows = min_of(kBlock, end - row);
      if (rows != configured) {
        const TileConfig config(rows);
        _tile_loadconfig(&config);
        configured = rows;
      }
      tile_block(a, x + row * ldx, ldx, depth, panel, rows, sums);
      for (long i = 0; i < rows; i++) store_row(sums + i * kPanel, a, row + i, column, columns);
    }
    _tile_release();
  }
};

#elif defined(__AVX512BF16__)

template <int Rows>
static void dot_block(const GemmArgs& a, const uint16_t* x, long ldx, long depth, const uint16_t* panel, long row, long column) {
  // A single row has too few independent sums to hide the latency of vdpbf16ps, so it takes k in four strands.
  constexpr int kStrands = Rows == 1 ? 4 : 1;
  __m512 sums[kStrands][Rows][2];
  MINIVLLM_UNROLL for (int s = 0; s < kStrands; s++)
    MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) sums[s][r][0] = sums[s][r][1] = _mm512_setzero_ps();
#pragma GCC unroll 1
  for (long k = 0; k < depth; k += 2 * kStrands) {
    MINIVLLM_UNROLL for (int s = 0; s < kStrands; s++) {
      const __m512bh w0 = (__m512bh)_mm512_loadu_si512(panel + s * 64), w1 = (__m512bh)_mm512_loadu_si512(panel + s * 64 + 32);
      MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) {
        int pair;
        memcpy(&pair, x + r * ldx + k + 2 * s, 4);
        const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
        sums[s][r][0] = _mm512_dpbf16_ps(sums[s][r][0], both, w0);
        sums[s][r][1] = _mm512_dpbf16_ps(sums[s][r][1], both, w1);
      }
    }
    panel += 64 * kStrands;
  }
  const long columns = min_of(kPanel, a.n - column);
  MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) {
    alignas(64) float out[kPanel];
    __m512 left = sums[0][r][0], right = sums[0][r][1];
    MINIVLLM_UNROLL for (int s = 1; s < kStrands; s++) {
      left = _mm512_add_ps(left, sums[s][r][0]);
      right = _mm512_add_ps(right, sums[s][r][1]);
    }
    _mm512_store_ps(out, left);
    _mm512_store_ps(out + 16, right);
    store_row(out, a, row + r, column, columns);
  }
}

struct Panels {
  static constexpr long kBlock = 8;
  using X = uint16_t;

  static void multiply(const GemmArgs& a, const X* x, long ldx, long depth, const uint16_t* panel, long begin, long end, long column) {
    using Block = void (*)(const GemmArgs&, const X*, long, long, const uint16_t*, long, long);
    static constexpr Block blocks[] = {dot_block<1>, dot_block<2>, dot_block<3>, dot_block<4>,
                                       dot_block<5>, dot_block<6>, dot_block<7>, dot_block<8>};
    const long parts = (end - begin + kBlock - 1) / kBlock;
    for (long part = 0; part < parts; part++) {
      const long from = begin + (end - begin) * part / parts, to = begin + (end - begin) * (part + 1) / parts;
      blocks[to - from - 1](a, x + from * ldx, ldx, depth, panel, from, column);
    }
  }
};

#else

// Weights are widened to fp32 in registers: the low half of a lane is the even k, the high half the odd one.
constexpr int kVectors = kLanes == 4 ? 4 : 2;
constexpr int kStripe = kVectors * kLanes;  // columns at once

template <int Rows>
static void widen_block(const float* x, long ldx, long depth, const uint16_t* panel, float* sums) {
  vf even[Rows][kVectors], odd[Rows == 1 ? 1 : 1][kVectors];
  MINIVLLM_UNROLL for (int r = 0; r < Rows; r++)
    MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) even[r][v] = vf{};
  MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) odd[0][v] = vf{};
#pragma GCC unroll 1
  for (long k = 0; k < depth; k += 2, panel += 2 * kPanel) {
    MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) {
      const vu pairs = load_bits<vu>(panel + v * kLanes * 2);
      const vf first = (vf)(pairs << 16), second = (vf)(pairs & 0xffff0000u);
      MINIVLLM_UNROLL for (int r = 0; r < Rows; r++) {
        even[r][v] += x[r * ldx + k] * first;
        vf& other = Rows == 1 ? odd[0][v] : even[r][v];
        other += x[r * ldx + k + 1] * second;
      }
    }
  }
  MINIVLLM_UNROLL for (int r = 0; r < Rows; r++)
    MINIVLLM_UNROLL for (int v = 0; v < kVectors; v++) store(sums + r * kPanel + v * kLanes, even[r][v] + odd[0][v]);
}

struct Panels {
  static constexpr long kBlock = kLanes == 16 ? 8 : 4;
  using X = float;

  static void multiply(const GemmArgs& a, const X* x, long ldx, long depth, const uint16_t* panel, long begin, long end, long column) {
    alignas(64) float sums[kBlock * kPanel];
    for (long row = begin; row < end; row += kBlock) {
      const long rows = min_of(kBlock, end - row);
      for (long stripe = 0; stripe < kPanel; stripe += kStripe) {
        if (rows == kBlock) {
          widen_block<kBlock>(x + row * ldx, ldx, depth, panel + stripe * 2, sums + stripe);
        } else {
          for (long r = 0; r < rows; r++) {
            widen_block<1>(x + (row + r) * ldx, ldx, depth, panel + stripe * 2, sums + r * kPanel + stripe);
          }
        }
      }
      for (long r = 0; r < rows; r++) store_row(sums + r * kPanel, a, row + r, column, min_of(kPanel, a.n - column));
    }
  }
};

#endif

// Rows of x as the block kernels read them: k padded with zeros, in X.
MINIVLLM_INLINE void prepare_row(const uint16_t* from, uint16_t* to, long k, long depth) {
  memcpy(to, from, k * 2);
  memset(to + k, 0, (depth - k) * 2);
}

MINIVLLM_INLINE void prepare_row(const uint16_t* from, float* to, long k, long depth) {
  const Bf16* x = (const Bf16*)from;
  for (long i = 0; i < depth; i += kLanes) {
    const long count = min_of(kLanes, k - i);
    store(to + i, count >= kLanes ? load(x + i) : count > 0 ? load_n(x + i, count) : vf{});
  }
}

static void multiply_all(const GemmArgs& a, const Panels::X* x, long ldx, long depth) {
  const long panels = (a.n + kPanel - 1) / kPanel;
  const long chunks = (a.m + kRowsAtOnce - 1) / kRowsAtOnce;
  parallel_for(chunks * panels, 1, [&](long begin, long end) {
    for (long i = begin; i < end; i++) {
      const long chunk = i / panels, panel = i % panels;
      Panels::multiply(a, x, ldx, depth, a.w + panel * kPanel * depth, a.m * chunk / chunks, a.m * (chunk + 1) / chunks, panel * kPanel);
    }
  });
}

void gemm(const GemmArgs& a) {
  const long depth = round_up(a.k, kDepth);
  if constexpr (sizeof(Panels::X) == 2) {
    if (depth == a.k) return multiply_all(a, (const Panels::X*)a.x, a.ldx, depth);
  }
  static thread_local Scratch scratch;
  Panels::X* x = (Panels::X*)scratch.floats(a.m * depth);
  parallel_for(a.m, max_of(1, 32768 / depth), [&](long begin, long end) {
    for (long row = begin; row < end; row++) prepare_row(a.x + row * a.ldx, x + row * depth, a.k, depth);
  });
  multiply_all(a, x, depth, depth);
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
