// Which variant of the kernels runs.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace minivllm {

std::vector<std::string> available_isas();  // best first
const KernelTable& kernels();
bool set_isa(const std::string& name);  // false: unknown or not supported by this CPU

}  // namespace minivllm
