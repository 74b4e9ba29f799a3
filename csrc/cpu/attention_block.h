// The keys of one step of the running softmax.
#pragma once
#include "attention_common.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long kKeys = 64;  // keys per block

// Where up to kKeys keys and values of an item lie.
template <class Cache>
struct Block {
  const Cache* keys[kKeys];
  const Cache* values[kKeys];
  float key_scales[kKeys], value_scales[kKeys];  // of an int8 cache
  long count;

  void locate(const AttentionArgs& a, const AttentionItem& item, long key) {
    count = min_of(kKeys, item.key_end - key);
    if (a.keys) return locate_rows(a, item, a.query_start[item.seq] + key);
    const long to_values = values_at<Cache>(a);
    const int32_t* table = a.block_tables + item.seq * a.table_stride;
    for (long i = 0; i < count;) {
      const long page = (key + i) / a.block_size, offset = (key + i) % a.block_size;
      const Cache* start = (const Cache*)a.kv + (table[page] * a.kv_heads + item.kv_head) * page_size<Cache>(a);
      const Cache* row = start + offset * a.head_dim;
      const long run = min_of(a.block_size - offset, count - i);
      if constexpr (kScaled<Cache>) {
        const Cache* scales = start + a.block_size * a.head_dim + offset * sizeof(float);
        memcpy(key_scales + i, scales, run * sizeof(float));
        memcpy(value_scales + i, scales + to_values, run * sizeof(float));
      }
      for (long j = 0; j < run; j++, i++, row += a.head_dim) keys[i] = row, values[i] = row + to_values;
    }
  }

  void locate_rows(const AttentionArgs& a, const AttentionItem& item, long first) {
    for (long i = 0; i < count; i++) {
      keys[i] = (const Cache*)a.keys + (first + i) * a.key_stride + item.kv_head * a.head_dim;
      values[i] = (const Cache*)a.values + (first + i) * a.value_stride + item.kv_head * a.head_dim;
    }
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
