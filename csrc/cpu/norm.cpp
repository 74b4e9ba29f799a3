// RMSNorm, alone and with the residual addition before it. Rounding as in the torch reference.
#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

template <class T>
static void norm_row(const T* x, T* residual, const T* weight, T* out, long cols, float eps) {
  const long whole = cols / kLanes * kLanes, rest = cols - whole;
  vf squares = {};
  if (residual) {
    for (long i = 0; i < whole; i += kLanes) {
      const vf sum = round_to<T>(load(x + i) + load(residual + i));
      store(residual + i, sum);
      squares += sum * sum;
    }
    if (rest) {
      const vf sum = round_to<T>(load_n(x + whole, rest) + load_n(residual + whole, rest));
      store_n(residual + whole, sum, rest);
      squares += sum * sum;
    }
    x = residual;
  } else {
    for (long i = 0; i < whole; i += kLanes) squares += load(x + i) * load(x + i);
    if (rest) squares += load_n(x + whole, rest) * load_n(x + whole, rest);
  }
  const float factor = 1.0f / __builtin_sqrtf(reduce_add(squares) / (float)cols + eps);
  for (long i = 0; i < whole; i += kLanes) store(out + i, load(weight + i) * round_to<T>(load(x + i) * factor));
  if (rest) store_n(out + whole, load_n(weight + whole, rest) * round_to<T>(load_n(x + whole, rest) * factor), rest);
}

template <class T>
void norm(const NormArgs& a) {
  parallel_for(a.rows, max_of(1, 2048 / a.cols), [&](long begin, long end) {
    for (long row = begin; row < end; row++) {
      const long at = row * a.cols;
      T* residual = a.residual ? (T*)a.residual + at : nullptr;
      norm_row((const T*)a.x + at, residual, (const T*)a.weight, (T*)a.out + at, a.cols, a.eps);
    }
  });
}

template void norm<float>(const NormArgs&);
template void norm<Bf16>(const NormArgs&);
template void norm<F16>(const NormArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
