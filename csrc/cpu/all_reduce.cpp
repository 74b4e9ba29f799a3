// The sum of what several ranks have: in fp32, in the order of the ranks, rounded once.
#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

template <class T>
void sum_parts(const SumArgs& a) {
  T* out = (T*)a.out;
  const auto at = [&](int part) { return (const T*)a.parts[part]; };
  parallel_for((a.count + kLanes - 1) / kLanes, 4096 / kLanes, [&](long begin, long end) {
    const long stop = min_of(end * kLanes, a.count);
    long i = begin * kLanes;
    for (; i + kLanes <= stop; i += kLanes) {
      vf sum = load(at(0) + i);
      for (int part = 1; part < a.num_parts; part++) sum += load(at(part) + i);
      store(out + i, sum);
    }
    if (i < stop) {
      vf sum = load_n(at(0) + i, stop - i);
      for (int part = 1; part < a.num_parts; part++) sum += load_n(at(part) + i, stop - i);
      store_n(out + i, sum, stop - i);
    }
  });
}

template void sum_parts<float>(const SumArgs&);
template void sum_parts<Bf16>(const SumArgs&);
template void sum_parts<F16>(const SumArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
