// Operations whose bytes another backend moves, on host views of the tensors: groups whose ranks are on several hosts.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "csrc/distributed/operation.h"

namespace neuron::distributed {

class Hosted final : public Operation {
 public:
  /// `begin` starts the transfer and gives its handle; `end`, if there is one, is called when it has succeeded. A thread of its own waits
  /// for it, since not all handles of Gloo tell when they are done.
  Hosted(std::function<c10::intrusive_ptr<c10d::Work>()> begin, std::function<void()> end, bool message);
  Progress step(bool light) override;
  std::string awaited() const override { return "the ranks on other hosts (Gloo does not tell which)"; }
  bool needs_rank(int) const override { return false; }

  /// Rank that a message came from, once done.
  int source() const { return source_.load(std::memory_order_acquire); }

 private:
  struct Outcome {
    std::atomic<bool> done{false};
    std::exception_ptr error;
  };
  void watch(const c10::intrusive_ptr<c10d::Work>& work);

  const std::function<c10::intrusive_ptr<c10d::Work>()> begin_;
  const std::function<void()> end_;
  const bool message_;
  bool started_ = false;
  c10::intrusive_ptr<c10d::Work> work_;
  std::atomic<int> source_{-1};
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

}  // namespace neuron::distributed
