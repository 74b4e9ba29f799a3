// What a thread that spins tells its core.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace minivllm {

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace minivllm
