// Rotary position embedding in place. Angles and products are rounded to the activations' type, as in the torch reference.
#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

template <class T>
MINIVLLM_INLINE void turn(vf& first, vf& second, vf cos, vf sin) {
  const vf a = first, b = second;
  first = round_to<T>(a * cos) - round_to<T>(b * sin);
  second = round_to<T>(b * cos) + round_to<T>(a * sin);
}

template <class T>
static void rotate_halves(T* x, const float* cos, const float* sin, long half) {
  long i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    vf first = load(x + i), second = load(x + half + i);
    turn<T>(first, second, load(cos + i), load(sin + i));
    store(x + i, first);
    store(x + half + i, second);
  }
  if (i < half) {
    const long rest = half - i;
    vf first = load_n(x + i, rest), second = load_n(x + half + i, rest);
    turn<T>(first, second, load_n(cos + i, rest), load_n(sin + i, rest));
    store_n(x + i, first, rest);
    store_n(x + half + i, second, rest);
  }
}

template <class T>
static void rotate_pairs(T* x, const float* cos, const float* sin, long half) {
  for (long i = 0; i < half; i += kLanes) {
    const long count = min_of(kLanes, half - i);
    T a[kLanes] = {}, b[kLanes] = {};
    for (long j = 0; j < count; j++) a[j] = x[2 * (i + j)], b[j] = x[2 * (i + j) + 1];
    vf first = load(a), second = load(b);
    turn<T>(first, second, load_n(cos + i, count), load_n(sin + i, count));
    store(a, first);
    store(b, second);
    for (long j = 0; j < count; j++) x[2 * (i + j)] = a[j], x[2 * (i + j) + 1] = b[j];
  }
}

template <class T>
void rotary(const RotaryArgs& a) {
  const long half = a.rotary_dim / 2;
  parallel_for(a.tokens, max_of(1, 2048 / (a.heads * a.head_dim)), [&](long begin, long end) {
    static thread_local Scratch scratch;
    float* angles = scratch.floats(a.rotary_dim + kLanes);
    for (long token = begin; token < end; token++) {
      const float* exact = a.cos_sin + a.positions[token] * a.rotary_dim;
      for (long i = 0; i < a.rotary_dim; i += kLanes) {
        store(angles + i, round_to<T>(load_n(exact + i, min_of(kLanes, a.rotary_dim - i))));
      }
      const auto rotate = a.interleaved ? rotate_pairs<T> : rotate_halves<T>;
      T *q = (T*)a.q + token * a.q_stride, *k = (T*)a.k + token * a.k_stride;
      for (long head = 0; head < a.heads; head++) rotate(q + head * a.head_dim, angles, angles + half, half);
      for (long head = 0; head < a.kv_heads; head++) rotate(k + head * a.head_dim, angles, angles + half, half);
    }
  });
}

template void rotary<float>(const RotaryArgs&);
template void rotary<Bf16>(const RotaryArgs&);
template void rotary<F16>(const RotaryArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
