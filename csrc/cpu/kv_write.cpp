// Stores keys and values in the paged cache, converting if the cache has another type.
#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

template <class T>
MINIVLLM_INLINE void copy_row(const T* from, T* to, long n) {
  memcpy(to, from, n * sizeof(T));
}

template <class From, class To>
MINIVLLM_INLINE void copy_row(const From* from, To* to, long n) {
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  if (i < n) store_n(to + i, load_n(from + i, n - i), n - i);
}

template <class T, class Cache>
void kv_write(const KvWriteArgs& a) {
  const long values_at = a.blocks * a.kv_heads * a.block_size * a.head_dim;
  parallel_for(a.tokens, max_of(1, 1024 / (a.kv_heads * a.head_dim)), [&](long begin, long end) {
    for (long token = begin; token < end; token++) {
      const int64_t slot = a.slots[token];
      if (slot < 0) continue;
      const long block = slot / a.block_size, offset = slot % a.block_size;
      const T *k = (const T*)a.k + token * a.k_stride, *v = (const T*)a.v + token * a.v_stride;
      for (long head = 0; head < a.kv_heads; head++) {
        Cache* row = (Cache*)a.kv + ((block * a.kv_heads + head) * a.block_size + offset) * a.head_dim;
        copy_row(k + head * a.head_dim, row, a.head_dim);
        copy_row(v + head * a.head_dim, row + values_at, a.head_dim);
      }
    }
  });
}

#define MINIVLLM_FROM(T)                                \
  template void kv_write<T, float>(const KvWriteArgs&); \
  template void kv_write<T, Bf16>(const KvWriteArgs&);  \
  template void kv_write<T, F16>(const KvWriteArgs&);
MINIVLLM_FROM(float)
MINIVLLM_FROM(Bf16)
MINIVLLM_FROM(F16)

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
