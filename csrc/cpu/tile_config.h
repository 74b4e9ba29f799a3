// The tile registers of AMX as the linear kernels divide them.
#pragma once
#include "simd.h"

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

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
