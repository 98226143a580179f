// What steps all operations of the process.
//
// Note [Who steps]
// The engine's thread, or a host thread that waits for an operation (Operation::help). While a host thread does, the engine's thread
// keeps away: on few cores two would only disturb each other. Stepping is guarded by one lock that nobody waits for: who does not get it
// sleeps on the doorbell, and each finished operation rings that.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "csrc/distributed/operation.h"

namespace neuron::distributed {

class Communicator;

class Engine {
 public:
  /// Lives as long as the process.
  static Engine& get();

  void add(const std::shared_ptr<Communicator>& communicator);
  void remove(const std::shared_ptr<Communicator>& communicator);

  /// Puts an operation at the end of a lane.
  void submit(const std::shared_ptr<Communicator>& communicator, Lane& lane, const std::shared_ptr<Operation>& operation);

  /// Lets it begin, without a lock of the caller. A small one whose turn it is and for which everything is there is done on return.
  void begin(const Operation& operation);

  /// Steps, or sleeps, on the calling thread until `stop()`.
  void drive(const std::function<bool()>& stop);

  /// Runs with stepping excluded.
  void excluded(const std::function<void()>& what);

  std::mutex& submitting() { return submitting_; }

 private:
  struct Submitted {
    std::shared_ptr<Communicator> communicator;
    Lane* lane;
    std::shared_ptr<Operation> operation;
  };
  Engine() = default;
  void start();
  void work();
  bool step(bool light);
  std::chrono::nanoseconds longest_sleep() const;
  void wake_own_thread();
  void settle_at_exit();

  std::mutex stepping_;
  std::vector<std::shared_ptr<Communicator>> communicators_;  // guarded by stepping_
  Clock::time_point next_check_ = Clock::time_point::min();   // guarded by stepping_
  std::atomic<int64_t> next_wake_ns_{0};                      // the earliest modelled arrival; 0: none
  std::atomic<int> pending_{0};

  std::mutex submitting_;
  std::vector<Submitted> submitted_;  // guarded by submitting_
  std::atomic<bool> any_submitted_{false};

  std::atomic<int> drivers_{0};
  std::atomic<bool> asleep_{false};  // the engine's thread, for long
  std::atomic<bool> parked_{false};  // the same, because of drivers
  std::atomic<uint32_t> handoff_{0};
  std::once_flag started_;
  std::atomic<bool> stopping_{false};
};

}  // namespace neuron::distributed
