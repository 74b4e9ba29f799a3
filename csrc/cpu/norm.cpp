// RMSNorm and LayerNorm, alone and with the residual addition before it. Rounding as in the torch reference.
#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

template <class T>
MINIVLLM_INLINE vf get(const T* p, long count) {
  return count == kLanes ? load(p) : load_n(p, count);
}

template <class T>
MINIVLLM_INLINE void put(T* p, vf value, long count) {
  count == kLanes ? store(p, value) : store_n(p, value, count);
}

// f(index, count) for each vector of the row, the last of which may be shorter.
template <class F>
MINIVLLM_INLINE void each(long cols, const F& f) {
  long i = 0;
  for (; i + kLanes <= cols; i += kLanes) f(i, (long)kLanes);
  if (i < cols) f(i, cols - i);
}

template <class T>
static void rms_row(const T* x, T* residual, const T* weight, T* out, const NormArgs& a) {
  vf squares = {};
  if (residual) {
    each(a.cols, [&](long i, long n) {
      const vf sum = round_to<T>(get(x + i, n) + get(residual + i, n));
      put(residual + i, sum, n);
      squares += sum * sum;
    });
    x = residual;
  } else {
    each(a.cols, [&](long i, long n) {
      const vf value = get(x + i, n);
      squares += value * value;
    });
  }
  const float factor = 1.0f / __builtin_sqrtf(reduce_add(squares) / (float)a.cols + a.eps);
  if (a.plus_one) {
    each(a.cols, [&](long i, long n) { put(out + i, get(x + i, n) * factor * (get(weight + i, n) + 1.0f), n); });
  } else {
    each(a.cols, [&](long i, long n) { put(out + i, get(weight + i, n) * round_to<T>(get(x + i, n) * factor), n); });
  }
}

template <class T>
static void layer_row(const T* x, T* residual, const T* weight, const T* bias, T* out, const NormArgs& a) {
  vf sums = {};
  if (residual) {
    each(a.cols, [&](long i, long n) {
      const vf sum = round_to<T>(get(x + i, n) + get(residual + i, n));
      put(residual + i, sum, n);
      sums += sum;
    });
    x = residual;
  } else {
    each(a.cols, [&](long i, long n) { sums += get(x + i, n); });
  }
  const float mean = reduce_add(sums) / (float)a.cols;
  vf squares = {};
  float rest = 0.0f;
  each(a.cols, [&](long i, long n) {
    const vf off = get(x + i, n) - mean;
    if (n == kLanes) {
      squares += off * off;
    } else {
      for (long j = 0; j < n; j++) rest += off[j] * off[j];
    }
  });
  const float factor = 1.0f / __builtin_sqrtf((reduce_add(squares) + rest) / (float)a.cols + a.eps);
  const float one = a.plus_one ? 1.0f : 0.0f;
  each(a.cols, [&](long i, long n) {
    vf value = (get(x + i, n) - mean) * factor;
    if (weight) value *= get(weight + i, n) + one;
    if (bias) value += get(bias + i, n);
    put(out + i, value, n);
  });
}

template <class T>
void norm(const NormArgs& a) {
  parallel_for(a.rows, max_of(1, 2048 / a.cols), [&](long begin, long end) {
    for (long row = begin; row < end; row++) {
      const long token = row / a.heads, head = row % a.heads, at = row * a.cols;
      const T* x = (const T*)a.x + token * a.x_stride + head * a.cols;
      const T* weight = a.weight ? (const T*)a.weight + (a.by_head ? head * a.cols : 0) : nullptr;
      T* residual = a.residual ? (T*)a.residual + at : nullptr;
      if (a.centred) {
        layer_row(x, residual, weight, (const T*)a.bias, (T*)a.out + at, a);
      } else {
        rms_row(x, residual, weight, (T*)a.out + at, a);
      }
    }
  });
}

template void norm<float>(const NormArgs&);
template void norm<Bf16>(const NormArgs&);
template void norm<F16>(const NormArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
