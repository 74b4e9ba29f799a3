// Causal attention over the paged cache: prefill, chunked prefill and decode alike, in blocks of keys with a running softmax.
// The rows of an item (see kernels.h) are its query tokens x the heads of one KV head.
#include "attention_lanes.h"
#include "attention_rows.h"
#include "ops.h"

namespace minivllm {
namespace MINIVLLM_ISA {

template <class Cache>
static void attend(const AttentionArgs& a, const AttentionItem& item, Scratch& scratch) {
  const long rows = item_rows(a, item);
  if constexpr (kLanes >= 16) {
    switch (rows) {
      case 5: return attend_rows<5, Cache>(a, item, scratch);
      case 6: return attend_rows<6, Cache>(a, item, scratch);
      case 7: return attend_rows<7, Cache>(a, item, scratch);
      case 8: return attend_rows<8, Cache>(a, item, scratch);
    }
  }
  if constexpr (kLanes >= 8) {
    if (rows == 3) return attend_rows<3, Cache>(a, item, scratch);
    if (rows == 4) return attend_rows<4, Cache>(a, item, scratch);
  }
  if (rows == 1) return attend_rows<1, Cache>(a, item, scratch);
  if (rows == 2) return attend_rows<2, Cache>(a, item, scratch);
  attend_lanes<Cache>(a, item, rows, scratch);
}

template <class Cache>
void attention(const AttentionArgs& a) {
  run_plan(a, [&](AttentionItem item, Scratch& scratch) {
    const int heads = item.num_kv_heads;
    item.num_kv_heads = 1;
    for (int head = 0; head < heads; head++, item.kv_head++) {
      attend<Cache>(a, item, scratch);
      if (item.partial >= 0) item.partial += item.head_step;
    }
  });
}

template void attention<float>(const AttentionArgs&);
template void attention<Bf16>(const AttentionArgs&);
template void attention<F16>(const AttentionArgs&);
template void attention<I8>(const AttentionArgs&);
template void attention<F8>(const AttentionArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
