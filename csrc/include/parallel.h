// Threads of a kernel and its scratch memory.
#pragma once
#include <cstdlib>
#include "team.h"

namespace minivllm {
namespace MINIVLLM_ISA {

// body(i) for each i in [0, n), one chunk each: for few, large pieces of work.
template <class Body>
static inline void parallel_each(long n, const Body& body) {
  run_chunks(n, [](const void* context, long i) { (*static_cast<const Body*>(context))(i); }, &body);
}

// body(begin, end) over [0, n), in even chunks of at least `smallest_share`: more of them cost more, fewer keep
// threads waiting for the last.
template <class Body>
static inline void parallel_for(long n, long smallest_share, const Body& body, long chunks_per_thread = 4) {
  const long threads = num_threads(), most = n / smallest_share, wanted = threads > 1 ? threads * chunks_per_thread : 1;
  const long chunks = most < wanted ? most : wanted;
  if (chunks < 2) return body(0, n);
  parallel_each(chunks, [&](long i) { body(n * i / chunks, n * (i + 1) / chunks); });
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
