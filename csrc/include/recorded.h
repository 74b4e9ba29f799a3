// From an op's C++ signature to its two forms in Python: a function that runs it, and a recorder for Program.
#pragma once
#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "program.h"

namespace minivllm {

namespace nb = nanobind;

// In place of a number of a recorded call: `factor` times the variable of that index, known when the program runs.
struct Variable {
  int index;
  int64_t factor;
};

// One argument of a recorded call. Only 64-bit integers (addresses, counts) may be variables.
template <class T>
class Operand {
 public:
  explicit Operand(nb::handle given) {
    if constexpr (kMayVary) {
      if (nb::isinstance<Variable>(given)) {
        variable_ = nb::cast<Variable>(given);
        return;
      }
    }
    value_ = nb::cast<T>(given);
  }

  T at(const int64_t* variables) const {
    if constexpr (kMayVary) {
      if (variable_.index >= 0) return static_cast<T>(variables[variable_.index] * variable_.factor);
    }
    return value_;
  }

 private:
  static constexpr bool kMayVary = std::is_integral_v<T> && sizeof(T) == 8;
  T value_{};
  Variable variable_{-1, 0};
};

using Recorder = std::function<Program::Call(const nb::tuple&)>;

inline std::unordered_map<std::string, Recorder>& recorders() {
  static std::unordered_map<std::string, Recorder> all;
  return all;
}

template <class... Args, size_t... I>
Program::Call record_call(void (*op)(Args...), const nb::tuple& given, std::index_sequence<I...>) {
  if (given.size() != sizeof...(Args)) throw std::invalid_argument("wrong number of arguments for a recorded call");
  std::tuple<Operand<Args>...> operands{Operand<Args>(given[I])...};
  return [op, operands](const int64_t* variables) { op(std::get<I>(operands).at(variables)...); };
}

// Makes `op` callable from Python, without the GIL, and recordable. By convention its first argument counts rows.
template <class... Args>
void define_op(nb::module_& m, const char* name, void (*op)(Args...)) {
  m.def(name, op, nb::call_guard<nb::gil_scoped_release>());
  recorders()[name] = [op](const nb::tuple& given) { return record_call(op, given, std::index_sequence_for<Args...>()); };
}

}  // namespace minivllm
