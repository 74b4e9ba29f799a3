// Stores keys and values in the paged cache, converting if the cache has another type; to int8 with a scale for each row.
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

// Writes what a unit of the result stands for to `scale`.
template <class From>
MINIVLLM_INLINE void quantize_row(const From* from, I8* to, I8* scale, long n) {
  const long whole = n / kLanes * kLanes;
  const vf rest = load_n(from + whole, n - whole);
  vf high = vmax(splat(1e-30f), vmax(rest, -rest));
  for (long i = 0; i < whole; i += kLanes) high = vmax(high, vmax(load(from + i), -load(from + i)));
  const float top = reduce_max(high), unit = top / 127.0f, factor = 127.0f / top;
  for (long i = 0; i < whole; i += kLanes) store(to + i, load(from + i) * factor);
  if (whole < n) store_n(to + whole, rest * factor, n - whole);
  memcpy(scale, &unit, sizeof unit);
}

template <class T, class Cache>
void kv_write(const KvWriteArgs& a) {
  const long values_at = a.blocks * a.kv_heads * page_size<Cache>(a);
  parallel_for(a.tokens, max_of(1, 1024 / (a.kv_heads * a.head_dim)), [&](long begin, long end) {
    for (long token = begin; token < end; token++) {
      const int64_t slot = a.slots[token];
      if (slot < 0) continue;
      const long block = slot / a.block_size, offset = slot % a.block_size;
      const T *k = (const T*)a.k + token * a.k_stride, *v = (const T*)a.v + token * a.v_stride;
      for (long head = 0; head < a.kv_heads; head++) {
        Cache* page = (Cache*)a.kv + (block * a.kv_heads + head) * page_size<Cache>(a);
        Cache* row = page + offset * a.head_dim;
        if constexpr (kScaled<Cache>) {
          Cache* scale = page + a.block_size * a.head_dim + offset * sizeof(float);
          quantize_row(k + head * a.head_dim, row, scale, a.head_dim);
          quantize_row(v + head * a.head_dim, row + values_at, scale + values_at, a.head_dim);
        } else {
          copy_row(k + head * a.head_dim, row, a.head_dim);
          copy_row(v + head * a.head_dim, row + values_at, a.head_dim);
        }
      }
    }
  });
}

#define MINIVLLM_FROM(T)                                \
  template void kv_write<T, float>(const KvWriteArgs&); \
  template void kv_write<T, Bf16>(const KvWriteArgs&);  \
  template void kv_write<T, F16>(const KvWriteArgs&);   \
  template void kv_write<T, I8>(const KvWriteArgs&);    \
  template void kv_write<T, F8>(const KvWriteArgs&);
MINIVLLM_FROM(float)
MINIVLLM_FROM(Bf16)
MINIVLLM_FROM(F16)

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
