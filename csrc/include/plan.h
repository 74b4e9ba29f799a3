// Division of a batch's attention into items for the threads; the same for every instruction set.
#pragma once
#include <vector>

#include "kernels.h"

namespace minivllm {

struct AttentionPlan {
  std::vector<int> token_order;
  std::vector<AttentionItem> items;
  std::vector<AttentionMerge> merges;
  long partial_rows = 0;
};

AttentionPlan plan_attention(const AttentionArgs& args, int threads);

}  // namespace minivllm
