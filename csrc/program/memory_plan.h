// Static memory planning: where in one block temporaries lie whose lifetimes are known.
#pragma once

#include <cstddef>
#include <vector>

namespace neuron {

/// A temporary: its size, and the first and last step that touches it (inclusive).
struct Lifetime {
  size_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct MemoryPlan {
  std::vector<size_t> offsets;  ///< by temporary, in bytes, multiples of kPlanAlignment
  size_t bytes = 0;             ///< of the block
};

constexpr size_t kPlanAlignment = 64;

/// Two temporaries whose lifetimes meet in a step never overlap. First fit, largest first: deterministic, and within a few percent of the
/// peak of live bytes for the lifetimes of a network's forward or backward pass.
MemoryPlan plan_memory(const std::vector<Lifetime>& temporaries);

}  // namespace neuron
