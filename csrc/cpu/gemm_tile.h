// Block kernel on AMX tiles: 32 rows x 32 columns of results in four tiles.
#pragma once
#include "gemm_store.h"
#include "tile_config.h"

namespace minivllm {
namespace MINIVLLM_ISA {

struct Kernel {
  using X = uint16_t;
  static constexpr long kBlock = 32;

  // Finished sums of a block that wait to be stored: its rows leave two at a time between the tile instructions of the next
  // block, which run meanwhile.
  struct Pending {
    const GemmArgs& a;
    const float* sums;
    long row, end, column;

    void store_some() {
      for (int i = 0; i < 2 && row < end; i++, row++, sums += kPanel) store_row(sums, a, row, column);
    }
    void store_all() {
      for (; row < end; row++, sums += kPanel) store_row(sums, a, row, column);
    }
  };

  static void block(const X* x, long stride, long depth, const uint16_t* panel, long rows, float* sums, Pending& pending) {
    const X* lower = x + 16 * stride;
    _tile_zero(0);
    _tile_zero(1);
    if (rows > 16) {
      _tile_zero(2);
      _tile_zero(3);
      for (long k = 0; k < depth; k += kDepth, panel += kDepth * kPanel, x += kDepth, lower += kDepth) {
        _tile_loadd(6, panel, kPanel * 4);
        _tile_loadd(4, x, stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + kPanel, kPanel * 4);
        _tile_dpbf16ps(1, 4, 7);
        pending.store_some();
        _tile_loadd(5, lower, stride * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(2, sums + 16 * kPanel, kPanel * 4);
      _tile_stored(3, sums + 16 * kPanel + 16, kPanel * 4);
    } else {
      for (long k = 0; k < depth; k += kDepth, panel += kDepth * kPanel, x += kDepth) {
        _tile_loadd(4, x, stride * 2);
        _tile_loadd(6, panel, kPanel * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + kPanel, kPanel * 4);
        _tile_dpbf16ps(1, 4, 7);
        pending.store_some();
      }
    }
    _tile_stored(0, sums, kPanel * 4);
    _tile_stored(1, sums + 16, kPanel * 4);
  }

  // Rows [begin, end) of x times one panel.
  static void multiply(const GemmArgs& a, const Rows<X>& x, const uint16_t* panel, long begin, long end, long column) {
    alignas(64) float sums[2][kBlock * kPanel];
    Pending pending{a, nullptr, 0, 0, column};
    long configured = 0;
    for (long row = begin; row < end; row += kBlock) {
      const long rows = min_of(kBlock, end - row);
      if (rows != configured) {
        const TileConfig config(rows);
        _tile_loadconfig(&config);
        configured = rows;
      }
      float* own = sums[(row - begin) / kBlock % 2];
      block(x.data + row * x.stride, x.stride, x.depth, panel, rows, own, pending);
      pending.store_all();
      pending.sums = own, pending.row = row, pending.end = row + rows;
    }
    pending.store_all();
    _tile_release();
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
