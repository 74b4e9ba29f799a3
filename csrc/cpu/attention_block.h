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
  long count;

  void locate(const AttentionArgs& a, const AttentionItem& item, long key) {
    count = min_of(kKeys, item.key_end - key);
    const long values_at = a.blocks * a.kv_heads * a.block_size * a.head_dim;
    const int32_t* table = a.block_tables + item.seq * a.table_stride;
    for (long i = 0; i < count;) {
      const long page = (key + i) / a.block_size, offset = (key + i) % a.block_size;
      const Cache* row = (const Cache*)a.kv + ((table[page] * a.kv_heads + item.kv_head) * a.block_size + offset) * a.head_dim;
      const long run = min_of(a.block_size - offset, count - i);
      for (long j = 0; j < run; j++, i++, row += a.head_dim) keys[i] = row, values[i] = row + values_at;
    }
  }
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
