// A mixture of experts in one call: for each expert that somebody was sent to, its tokens' rows are gathered, multiplied, and
// added to the sums of their tokens. Experts come in their order, so a token's sum does not depend on the others in the batch.
#include <vector>

#include "isa.h"
#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

constexpr long kSmallestShare = 4096;  // elements of rows that a thread takes

// Choices (token x top_k + rank) of expert e: choices[starts[e]] to choices[starts[e + 1]].
struct Sent {
  std::vector<long> starts, choices;

  explicit Sent(const MixArgs& a) : starts(a.num_experts + 1) {
    const long count = a.tokens * a.top_k;
    const auto is_here = [&](long i) { return a.experts[i] >= 0 && a.experts[i] < a.num_experts; };
    for (long i = 0; i < count; i++) {
      if (is_here(i)) starts[a.experts[i] + 1]++;
    }
    for (long e = 0; e < a.num_experts; e++) starts[e + 1] += starts[e];
    choices.resize(starts.back());
    std::vector<long> next = starts;
    for (long i = 0; i < count; i++) {
      if (is_here(i)) choices[next[a.experts[i]]++] = i;
    }
  }

  long most() const {
    long found = 0;
    for (size_t e = 1; e < starts.size(); e++) found = max_of(found, starts[e] - starts[e - 1]);
    return found;
  }
};

template <class T>
static void multiply(const ExpertLinear& w, DType dtype, long expert, const T* x, T* y, long rows) {
  const T* bias = w.bias ? (const T*)w.bias + expert * w.n : nullptr;
  const void* weight = (const void*)w.weights[expert];
  if (w.bits == 0) return kernels().gemm[(int)dtype]({x, weight, bias, y, rows, w.n, w.k, w.k});
  kernels().gemm_grouped({w.bits, w.group, (const uint16_t*)x, (const uint8_t*)weight, (const uint16_t*)bias, (uint16_t*)y, rows, w.n,
                          w.k, w.k, w.table, nullptr});
}

// sums += share * row
template <class T>
static void add_row(const T* row, float share, float* sums, long n) {
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) store(sums + i, load(sums + i) + share * load(row + i));
  if (i < n) store_n(sums + i, load_n(sums + i, n - i) + share * load_n(row + i, n - i), n - i);
}

template <class T>
void mix(const MixArgs& a) {
  const Sent sent(a);
  const long hidden = a.down.n, size = a.down.k, most = sent.most(), share = max_of(1, kSmallestShare / hidden);
  static thread_local Scratch for_sums, for_rows;
  float* sums = for_sums.floats(a.tokens * hidden);
  T* rows = (T*)for_rows.floats((most * (hidden + 3 * size) * (long)sizeof(T) + 3) / 4);
  T *both = rows + most * hidden, *gated = both + most * 2 * size;
  memset(sums, 0, a.tokens * hidden * sizeof(float));
  for (long expert = 0; expert < a.num_experts; expert++) {
    const long* choices = sent.choices.data() + sent.starts[expert];
    const long count = sent.starts[expert + 1] - sent.starts[expert];
    if (count == 0) continue;
    parallel_for(count, share, [&](long begin, long end) {
      for (long i = begin; i < end; i++) {
        memcpy(rows + i * hidden, (const T*)a.x + choices[i] / a.top_k * hidden, hidden * sizeof(T));
      }
    });
    multiply(a.gate_up, a.dtype, expert, rows, both, count);
    kernels().gate[(int)a.dtype]({both, gated, count, size, a.limit > 0 ? Gate::limited : Gate::silu, a.limit});
    multiply(a.down, a.dtype, expert, gated, rows, count);
    parallel_for(count, share, [&](long begin, long end) {
      for (long i = begin; i < end; i++) {
        add_row(rows + i * hidden, a.shares[choices[i]], sums + choices[i] / a.top_k * hidden, hidden);
      }
    });
  }
  parallel_for(a.tokens, share, [&](long begin, long end) {
    for (long token = begin; token < end; token++) write_as(sums + token * hidden, 1.0f, (T*)a.out + token * hidden, hidden);
  });
}

template void mix<float>(const MixArgs&);
template void mix<Bf16>(const MixArgs&);
template void mix<F16>(const MixArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
