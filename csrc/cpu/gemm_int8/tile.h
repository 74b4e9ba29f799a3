// Block kernel on AMX tiles: 16 rows x 32 columns of results, as two sums each, in four tiles.
#pragma once
#include "dot.h"
#include "tile_config.h"

namespace minivllm {
namespace MINIVLLM_ISA {

struct TileKernel {
  using X = int8_t;
  static constexpr long kBlock = 16;

  // Finished sums of a block that wait to be stored: its rows leave two at a time between the tile instructions of the next
  // block, which run meanwhile.
  struct Pending {
    const GemmInt8Args& a;
    const RowFacts* facts;
    long column;
    const int32_t* sums = nullptr;  // [2 * rows, kPanel]
    long row = 0, end = 0;

    void store_one() {
      alignas(64) float out[kPanel];
      for (int half = 0; half < 2; half++) {
        const int32_t* high = sums + half * 16;
        store(out + half * 16, total(_mm512_loadu_si512(high), _mm512_loadu_si512(high + kPanel), facts[row]));
      }
      store_row(out, a, facts[row].scale, row, column);
      sums += 2 * kPanel;
      row++;
    }
    void store_some() {
      for (int i = 0; i < 2 && row < end; i++) store_one();
    }
    void store_all() {
      while (row < end) store_one();
    }
  };

  // `rows` counts rows of bytes: two for each row of x.
  static void block(const X* x, long depth, const uint8_t* panel, long rows, int32_t* sums, Pending& pending) {
    constexpr long kStep = kDepthInt8 * kPanel;
    const X* lower = x + 16 * depth;
    const X* end = x + depth;
    _tile_zero(0);
    _tile_zero(1);
    if (rows > 16) {
      _tile_zero(2);
      _tile_zero(3);
      for (; x < end; panel += kStep, x += kDepthInt8, lower += kDepthInt8) {
        _tile_loadd(6, panel, kPanel * 4);
        _tile_loadd(4, x, depth);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, panel + kPanel * 2, kPanel * 4);
        _tile_dpbsud(1, 4, 7);
        pending.store_some();
        _tile_loadd(5, lower, depth);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
      }
      _tile_stored(2, sums + 16 * kPanel, kPanel * 4);
      _tile_stored(3, sums + 16 * kPanel + 16, kPanel * 4);
    } else {
      for (; x < end; panel += kStep, x += kDepthInt8) {
        _tile_loadd(4, x, depth);
        _tile_loadd(6, panel, kPanel * 4);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, panel + kPanel * 2, kPanel * 4);
        _tile_dpbsud(1, 4, 7);
        pending.store_some();
      }
    }
    _tile_stored(0, sums, kPanel * 4);
    _tile_stored(1, sums + 16, kPanel * 4);
  }

  // Rows [begin, end) of x times one panel.
  static void multiply(const GemmInt8Args& a, const QuantizedRows<X>& x, const uint8_t* panel, long begin, long end,
                       long column) {
    alignas(64) int32_t sums[2][2 * kBlock * kPanel];
    Pending pending{a, x.facts, column};
    long configured = 0;
    for (long row = begin; row < end; row += kBlock) {
      const long rows = min_of(kBlock, end - row);
      if (rows != configured) {
        const TileConfig config(2 * rows);
        _tile_loadconfig(&config);
        configured = rows;
      }
      int32_t* own = sums[(row - begin) / kBlock % 2];
      block(x.data + 2 * row * x.depth, x.depth, panel, 2 * rows, own, pending);
      pending.store_all();
      pending.sums = own, pending.row = row, pending.end = row + rows;
    }
    pending.store_all();
    _tile_release();
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
