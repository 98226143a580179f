// One rank's part of one process group: its lanes, its way to the other ranks, and whether it has failed.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/distributed/channel.h"
#include "csrc/distributed/operation.h"

namespace neuron::distributed {

class Communicator {
 public:
  /// `channel` is null when the ranks are on several hosts, or when there is one rank.
  Communicator(std::string name, int rank, int size, std::unique_ptr<Channel> channel);

  const std::string name;
  const int rank;
  const int size;

  Channel* channel() const { return channel_.get(); }

  Lane& collectives() { return collectives_; }
  /// Sends to (or receives from) a rank; receives from any rank have the lane of rank -1.
  Lane& sends(int to) { return lane(sends_, to); }
  Lane& receives() { return receives_; }

  /// What made the group fail; null while it works. Any thread.
  std::exception_ptr failure() const;

  /// True when all that was submitted is done. Any thread.
  bool idle() const { return pending_.load(std::memory_order_acquire) == 0; }

  /// Makes the group fail for `reason`, and all pending operations with it. Tells the other ranks. Any thread.
  void abort(const std::string& reason);

  /// Tells the other ranks that this one will take part in nothing more. Any thread.
  void leave();

  // ---- For the engine, which steps. ----

  /// True when something moved. What finished lands in `done`, to be dropped without the lock.
  bool step(bool light, std::vector<std::shared_ptr<Operation>>* done);

  /// Fails the group when an operation is late or needs a rank that has ended.
  void check(std::vector<std::shared_ptr<Operation>>* done);

  /// Earliest `not_before` of what waits only for that; max() when nothing does.
  Clock::time_point next_arrival() const { return next_arrival_; }

  std::atomic<int> pending_{0};

 private:
  template <class F>
  void for_each_lane(F&& visit);
  Lane& lane(std::map<int, Lane>& lanes, int rank);
  bool step(Lane& lane, bool light, std::vector<std::shared_ptr<Operation>>* done);
  void fail(std::exception_ptr reason, std::vector<std::shared_ptr<Operation>>* done);
  void finish(const std::shared_ptr<Operation>& operation, std::exception_ptr error, std::vector<std::shared_ptr<Operation>>* done);
  std::string late(const Operation& operation) const;

  /// A rank that `operation` needs and that will not come, or -1. One that ended without a word before one that left, and that before one
  /// that gave the group up: it may have done so because of the others.
  int missing(const Operation& operation) const;

  const std::unique_ptr<Channel> channel_;
  Lane collectives_{true};
  Lane receives_{false};
  std::map<int, Lane> sends_;  // guarded by the engine's submitting()
  mutable std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::exception_ptr abort_reason_;  // to be carried out by the next step
  Clock::time_point next_arrival_ = Clock::time_point::max();
};

}  // namespace neuron::distributed
