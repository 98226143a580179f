#include "csrc/program/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace neuron {

MemoryPlan plan_memory(const std::vector<Lifetime>& temporaries) {
  auto rounded = [](size_t bytes) { return (bytes + kPlanAlignment - 1) / kPlanAlignment * kPlanAlignment; };
  MemoryPlan plan;
  plan.offsets.assign(temporaries.size(), 0);
  std::vector<size_t> order(temporaries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return temporaries[a].bytes > temporaries[b].bytes; });
  // What is placed, by offset: a new one goes into the first gap between those that live at the same time.
  std::vector<size_t> placed;
  for (size_t one : order) {
    const auto& temporary = temporaries[one];
    const size_t size = rounded(temporary.bytes);
    size_t at = 0;
    for (size_t other : placed) {
      const auto& neighbour = temporaries[other];
      if (neighbour.last < temporary.first || neighbour.first > temporary.last) continue;
      if (plan.offsets[other] >= at + size) break;
      at = std::max(at, plan.offsets[other] + rounded(neighbour.bytes));
    }
    plan.offsets[one] = at;
    plan.bytes = std::max(plan.bytes, at + size);
    auto by_offset = [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), one, by_offset), one);
  }
  return plan;
}

}  // namespace neuron
