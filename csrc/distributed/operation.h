// One collective, send or receive, and the lanes in which they wait for their turn.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "csrc/distributed/flight_recorder.h"
#include "csrc/distributed/staging.h"
#include "csrc/runtime/completion.h"

namespace neuron::distributed {

using Clock = std::chrono::steady_clock;

/// Memory of this process that an operation reads or writes.
struct Buffer {
  char* data = nullptr;  ///< device address, or one of the host
  size_t bytes = 0;
  int device = 0;  ///< -1: memory of the host, see Note [Staging]
};

/// Stepped by the engine until it is finished. Only whoever steps the engine touches it, but for what Completion offers.
class Operation : public Completion {
 public:
  enum class Progress { none, moved, finished };

  /// Goes on as far as it can without waiting. With `light`, it does not move more than a few KiB. Throws what makes it fail.
  virtual Progress step(bool light) = 0;

  /// The same with what is staged.
  Progress step_staged(bool light);

  /// Whether `later`, submitted after it in its lane, must not go on before this one has gone further: both would take the same message.
  virtual bool precedes(const Operation& later) const {
    (void)later;
    return false;
  }

  /// What it waits for, to go after "waits for": "rank 2, which last entered ALLREDUCE SUM #11 at train.py:12".
  virtual std::string awaited() const = 0;

  /// Whether it can still be done after `rank` of the group has ended.
  virtual bool needs_rank(int rank) const = 0;

  /// Gives back what is shared with other ranks, when the operation was given up. They have been told, or have ended.
  virtual void give_up() {}

  // ---- Completion. ----
  std::vector<StreamPoint> needs() override;
  void help(const std::function<bool()>& stop) override;
  void finish(std::exception_ptr error = nullptr) { Completion::finish(std::move(error)); }

  /// True once the streams have reached its own points.
  bool inputs_ready() const;

  // Set before it is submitted.
  std::vector<StreamPoint> points;
  Clock::time_point deadline = Clock::time_point::max();
  std::shared_ptr<void> keep;  ///< the tensors; let go of when it is done
  std::shared_ptr<FlightRecord> record;
  std::vector<StagedCopy> to_host, to_device;  ///< before it begins, and once it has succeeded
  bool heavy = false;                          ///< moves more than a few KiB

  /// The operation before it in its lane, while that is not done. Guarded by the engine.
  std::shared_ptr<Operation> previous;

  /// Modelled time on the link: it is not done before.
  Clock::time_point not_before = Clock::time_point::min();
};

/// Makes later work of `stream` wait for `operation`.
void await(Stream& stream, std::shared_ptr<Operation> operation);

/// Operations of which either only the first may go on (`in_order`), or all that are ready, up to the first that is not, but for those that
/// an earlier one precedes().
struct Lane {
  explicit Lane(bool in_order) : in_order(in_order) {}
  const bool in_order;
  std::deque<std::shared_ptr<Operation>> waiting;
  std::shared_ptr<Operation> last;  ///< most recently submitted; guarded by the engine
};

}  // namespace neuron::distributed
