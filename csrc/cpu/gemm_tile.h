// Block kernel on AMX tiles: 32 rows x 32 columns of results in four tiles.
#pragma once
#include "gemm_store.h"

namespace minivllm {
namespace MINIVLLM_ISA {

// Tiles 0 1 / 2 3 hold results, 4 and 5 sixteen rows of x each, 6 and 7 the halves of a panel.
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

struct Kernel {
  using X = uint16_t;
  static constexpr long kBlock = 32;
  // From this many rows on x is copied tile by tile, so that the tiles' loads are streams.
  static constexpr long kTiledFrom = 128;

  static bool takes_plain_rows(const GemmArgs& a, long depth) { return depth == a.k && a.m < kTiledFrom; }

  // Tiled: groups of 16 rows; in a group, 16 x 32 blocks along k.
  static void prepare_row(const GemmArgs& a, long row, X* x, long depth) {
    const X* from = a.x + row * a.ldx;
    X* to = x + row / 16 * 16 * depth + row % 16 * kDepth;
    for (long k = 0; k < depth; k += kDepth, to += 16 * kDepth) {
      const long count = min_of(kDepth, a.k - k);
      memcpy(to, from + k, count * 2);
      memset(to + count, 0, (kDepth - count) * 2);
    }
  }

  struct View {
    const X* data;
    long row_bytes, k_step, group_step;
  };

  static void block(const View& x, long row, long depth, const uint16_t* panel, long rows, float* sums) {
    const X *upper = x.data + row / 16 * x.group_step, *lower = upper + x.group_step;
    _tile_zero(0);
    _tile_zero(1);
    if (rows > 16) {
      _tile_zero(2);
      _tile_zero(3);
      for (long k = 0; k < depth; k += kDepth, panel += kDepth * kPanel, upper += x.k_step, lower += x.k_step) {
        _tile_loadd(6, panel, kPanel * 4);
        _tile_loadd(4, upper, x.row_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + kPanel, kPanel * 4);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower, x.row_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(2, sums + 16 * kPanel, kPanel * 4);
      _tile_stored(3, sums + 16 * kPanel + 16, kPanel * 4);
    } else {
      for (long k = 0; k < depth; k += kDepth, panel += kDepth * kPanel, upper += x.k_step) {
        _tile_loadd(4, upper, x.row_bytes);
        _tile_loadd(6, panel, kPanel * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + kPanel, kPanel * 4);
        _tile_dpbf16ps(1, 4, 7);
      }
    }
    _tile_stored(0, sums, kPanel * 4);
    _tile_stored(1, sums + 16, kPanel * 4);
  }

  // Rows [begin, end) of x times one panel; begin is a multiple of kBlock.
  static void multiply(const GemmArgs& a, const Rows<X>& x, const uint16_t* panel, long begin, long end, long column) {
    alignas(64) float sums[kBlock * kPanel];
    const bool plain = takes_plain_rows(a, x.depth);
    const View view = plain ? View{x.data, x.stride * 2, kDepth, 16 * x.stride} : View{x.data, kDepth * 2, 16 * kDepth, 16 * x.depth};
    long configured = 0;
    for (long row = begin; row < end; row += kBlock) {
      const long rows = min_of(kBlock, end - row);
      if (rows != configured) {
        const TileConfig config(rows);
        _tile_loadconfig(&config);
        configured = rows;
      }
      block(view, row, x.depth, panel, rows, sums);
      for (long i = 0; i < rows; i++) store_row(sums + i * kPanel, a, row + i, column);
    }
    _tile_release();
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
