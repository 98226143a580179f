// Static memory planning: no overlap of what lives at the same time, the same plan each time, and a block not much larger than it must be.
#include "csrc/program/memory_plan.h"

#include <algorithm>
#include <random>

#include "tests/cpp/check.h"

using namespace neuron;

namespace {

void check_plan(const std::vector<Lifetime>& temporaries, const MemoryPlan& plan) {
  CHECK_EQ(plan.offsets.size(), temporaries.size());
  for (size_t a = 0; a < temporaries.size(); ++a) {
    CHECK_EQ(plan.offsets[a] % kPlanAlignment, size_t{0});
    CHECK(plan.offsets[a] + temporaries[a].bytes <= plan.bytes);
    for (size_t b = 0; b < a; ++b) {
      const bool together = temporaries[a].first <= temporaries[b].last && temporaries[b].first <= temporaries[a].last;
      const bool apart =
          plan.offsets[a] + temporaries[a].bytes <= plan.offsets[b] || plan.offsets[b] + temporaries[b].bytes <= plan.offsets[a];
      CHECK(!together || apart);
    }
  }
}

/// Most bytes that live at the same time.
size_t peak(const std::vector<Lifetime>& temporaries) {
  size_t most = 0;
  for (const auto& at : temporaries) {
    size_t live = 0;
    for (const auto& one : temporaries)
      if (one.first <= at.first && at.first <= one.last) live += one.bytes;
    most = std::max(most, live);
  }
  return most;
}

}  // namespace

TEST(memory_plan_of_nothing) { CHECK_EQ(plan_memory({}).bytes, size_t{0}); }

TEST(memory_plan_of_a_chain_holds_two) {
  std::vector<Lifetime> chain;
  for (int i = 0; i < 20; ++i) chain.push_back({4096, i, i + 1});
  const auto plan = plan_memory(chain);
  check_plan(chain, plan);
  CHECK_EQ(plan.bytes, size_t{2 * 4096});
}

TEST(memory_plan_of_a_forward_and_backward_pass_is_the_peak) {
  std::vector<Lifetime> lifetimes;  // activations live until their gradient is taken
  for (int i = 0; i < 16; ++i) lifetimes.push_back({1 << 16, i, 40 - i});
  const auto plan = plan_memory(lifetimes);
  check_plan(lifetimes, plan);
  CHECK_EQ(plan.bytes, peak(lifetimes));
}

TEST(memory_plan_random) {
  std::mt19937 random(7);
  double worst = 1;
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lifetimes;
    for (int i = 0; i < 60; ++i) {
      const int first = static_cast<int>(random() % 100);
      lifetimes.push_back({(random() % 64 + 1) * kPlanAlignment, first, first + static_cast<int>(random() % 12)});
    }
    const auto plan = plan_memory(lifetimes);
    check_plan(lifetimes, plan);
    CHECK(plan.offsets == plan_memory(lifetimes).offsets);
    worst = std::max(worst, static_cast<double>(plan.bytes) / static_cast<double>(peak(lifetimes)));
  }
  CHECK(worst < 1.35);
}
