#include "csrc/distributed/hosted.h"

#include <ATen/core/ivalue.h>

#include <thread>
#include <utility>

#include "csrc/distributed/peer.h"

namespace neuron::distributed {

Hosted::Hosted(std::function<c10::intrusive_ptr<c10d::Work>()> begin, std::function<void()> end, bool message)
    : begin_(std::move(begin)), end_(std::move(end)), message_(message) {
  heavy = true;
}

Operation::Progress Hosted::step(bool light) {
  if (!started_) {
    if (light) return Progress::none;
    started_ = true;
    work_ = begin_();
    watch(work_);
    return Progress::moved;
  }
  if (!outcome_->done.load(std::memory_order_acquire)) return Progress::none;
  if (outcome_->error) std::rethrow_exception(outcome_->error);
  if (message_ && work_->retrieveOpType() == c10d::OpType::RECVANYSOURCE) source_.store(work_->sourceRank(), std::memory_order_release);
  if (end_) end_();
  return Progress::finished;
}

void Hosted::watch(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto finish = [outcome = outcome_](std::exception_ptr error) {
    outcome->error = std::move(error);
    outcome->done.store(true, std::memory_order_release);
    own_bell().ring();
  };
  std::thread([work, finish] {
    try {
      work->wait();
      finish(nullptr);
    } catch (...) {
      finish(std::current_exception());
    }
  }).detach();
}

}  // namespace neuron::distributed
