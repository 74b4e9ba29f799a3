// act(gate) * up, where the activation is rounded before the product, as in the torch reference; act(x); and x * factor + y.
#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace minivllm {
namespace MINIVLLM_ISA {

struct Silu {
  MINIVLLM_INLINE vf apply(vf x) { return x * vsigmoid(x); }
};

struct GeluTanh {
  // (1 + tanh(u)) / 2 = sigmoid(2u)
  MINIVLLM_INLINE vf apply(vf x) { return x * vsigmoid(2.0f * 0.7978845608f * (x + 0.044715f * x * x * x)); }
};

struct GeluErf {
  // x * erfc(-x / sqrt 2) / 2, erfc by the Chebyshev fit of Numerical Recipes (relative error 1.2e-7).
  MINIVLLM_INLINE vf apply(vf x) {
    const vf z = x * 0.70710678118f, size = z < vf{} ? -z : z;
    const vf t = 1.0f / (1.0f + 0.5f * size);
    vf p = splat(0.17087277f);
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    const vf tail = t * vexp(p - size * size);  // erfc(|z|)
    return 0.5f * x * (z < vf{} ? tail : 2.0f - tail);
  }
};

// combine(gate, up) for each vector.
template <class T, class Combine>
static void gate_rows(const GateArgs& a, const Combine& combine) {
  parallel_for(a.rows, max_of(1, 2048 / a.cols), [&](long begin, long end) {
    for (long row = begin; row < end; row++) {
      const T *gate = (const T*)a.x + row * 2 * a.cols, *up = gate + a.cols;
      T* out = (T*)a.out + row * a.cols;
      long i = 0;
      for (; i + kLanes <= a.cols; i += kLanes) store(out + i, combine(load(gate + i), load(up + i)));
      if (i < a.cols) store_n(out + i, combine(load_n(gate + i, a.cols - i), load_n(up + i, a.cols - i)), a.cols - i);
    }
  });
}

template <class T, class Act>
static void gate_by(const GateArgs& a) {
  gate_rows<T>(a, [](vf gate, vf up) { return round_to<T>(Act::apply(gate)) * up; });
}

// As gpt-oss has it: gate * sigmoid(1.702 gate) * (up + 1), gate and up within the limit, rounded after each step.
template <class T>
static void gate_within(const GateArgs& a) {
  gate_rows<T>(a, [low = splat(-a.limit)](vf gate, vf up) {
    gate = -vmax(-gate, low);
    up = vmax(-vmax(-up, low), low);
    return round_to<T>(gate * round_to<T>(vsigmoid(round_to<T>(1.702f * gate)))) * round_to<T>(up + 1.0f);
  });
}

template <class T>
void gate(const GateArgs& a) {
  switch (a.gate) {
    case Gate::silu: return gate_by<T, Silu>(a);
    case Gate::gelu_tanh: return gate_by<T, GeluTanh>(a);
    case Gate::gelu_erf: return gate_by<T, GeluErf>(a);
    case Gate::limited: return gate_within<T>(a);
  }
}

struct Relu {
  MINIVLLM_INLINE vf apply(vf x) { return vmax(x, vf{}); }
};

struct Relu2 {
  MINIVLLM_INLINE vf apply(vf x) { return vmax(x, vf{}) * vmax(x, vf{}); }
};

// f(index, count) for each vector of rows [begin, end), which are dense.
template <class F>
static void each_vector(long rows, long cols, const F& f) {
  parallel_for(rows, max_of(1, 4096 / cols), [&](long begin, long end) {
    long i = begin * cols;
    for (; i + kLanes <= end * cols; i += kLanes) f(i, (long)kLanes);
    if (i < end * cols) f(i, end * cols - i);
  });
}

template <class T, class Function>
static void act_rows(const ActArgs& a) {
  const T* x = (const T*)a.x;
  T* out = (T*)a.out;
  each_vector(a.rows, a.cols, [&](long i, long n) {
    if (n == kLanes) {
      store(out + i, Function::apply(load(x + i)));
    } else {
      store_n(out + i, Function::apply(load_n(x + i, n)), n);
    }
  });
}

template <class T>
void act(const ActArgs& a) {
  switch (a.act) {
    case Act::silu: return act_rows<T, Silu>(a);
    case Act::gelu_tanh: return act_rows<T, GeluTanh>(a);
    case Act::gelu_erf: return act_rows<T, GeluErf>(a);
    case Act::relu: return act_rows<T, Relu>(a);
    case Act::relu2: return act_rows<T, Relu2>(a);
  }
}

template <class T>
void scale_add(const ScaleAddArgs& a) {
  T* x = (T*)a.x;
  const T* y = (const T*)a.y;
  each_vector(a.rows, a.cols, [&](long i, long n) {
    vf value = (n == kLanes ? load(x + i) : load_n(x + i, n)) * a.factor;
    if (y) value += n == kLanes ? load(y + i) : load_n(y + i, n);
    n == kLanes ? store(x + i, value) : store_n(x + i, value, n);
  });
}

template void act<float>(const ActArgs&);
template void act<Bf16>(const ActArgs&);
template void act<F16>(const ActArgs&);
template void scale_add<float>(const ScaleAddArgs&);
template void scale_add<Bf16>(const ScaleAddArgs&);
template void scale_add<F16>(const ScaleAddArgs&);
template void gate<float>(const GateArgs&);
template void gate<Bf16>(const GateArgs&);
template void gate<F16>(const GateArgs&);

}  // namespace MINIVLLM_ISA
}  // namespace minivllm
