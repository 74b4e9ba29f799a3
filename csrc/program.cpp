#include "program.h"

#include <chrono>

#include "team.h"

namespace minivllm {

void Program::add(const std::string& name, Call call) {
  names_.push_back(name);
  calls_.push_back(std::move(call));
}

// Calls follow each other faster than an idle helper goes to sleep, so the whole team stays awake from the first to the last.
void Program::run(const std::vector<int64_t>& variables) const {
  wake_team();
  for (const Call& call : calls_) call(variables.data());
}

std::vector<double> Program::run_timed(const std::vector<int64_t>& variables) const {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  seconds.reserve(calls_.size());
  wake_team();
  for (const Call& call : calls_) {
    const auto begin = Clock::now();
    call(variables.data());
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return seconds;
}

}  // namespace minivllm
