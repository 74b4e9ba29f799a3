// A recorded sequence of kernel calls. Replaying it calls them one after another, with this step's values for the variables.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace minivllm {

class Program {
 public:
  using Call = std::function<void(const int64_t* variables)>;

  void add(const std::string& name, Call call);
  void run(const std::vector<int64_t>& variables) const;
  std::vector<double> run_timed(const std::vector<int64_t>& variables) const;  // seconds of each call
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<Call> calls_;
  std::vector<std::string> names_;
};

}  // namespace minivllm
