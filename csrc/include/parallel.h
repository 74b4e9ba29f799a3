// Threads of a kernel and its scratch memory.
#pragma once
#include <cstdlib>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace minivllm {
namespace MINIVLLM_ISA {

// body(begin, end) over [0, n), divided evenly. The team is whole or the caller alone: libgomp ends threads that a smaller
// team does not need, and starting them again costs more than most kernels.
template <class Body>
static inline void parallel_for(long n, long smallest_share, const Body& body) {
#if defined(_OPENMP)
  if (n >= 2 * smallest_share && omp_get_max_threads() > 1) {
#pragma omp parallel
    {
      const long thread = omp_get_thread_num(), threads = omp_get_num_threads();
      body(n * thread / threads, n * (thread + 1) / threads);
    }
    return;
  }
#endif
  body(0, n);
}

// Grow-only aligned memory; use as `static thread_local`.
class Scratch {
 public:
  ~Scratch() { free(data_); }
  float* floats(long count) {
    if (count > capacity_) {
      free(data_);
      capacity_ = count;
      if (posix_memalign(&data_, 64, (size_t)count * sizeof(float)) != 0) abort();
    }
    return (float*)data_;
  }

 private:
  void* data_ = nullptr;
  long capacity_ = 0;
};

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
