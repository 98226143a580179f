// Streams of NeuronCores: an in-order queue of records and the thread that works it off through the runtime's own queues.
//
// Note [Pipeline]
// A launch schedules an execution and goes on: up to kInFlight of them are under way per stream, which the core runs in order. Everything
// else (host functions, copies, events, waits for other streams) first waits for what is under way, because the runtime orders nothing
// between its queues. A full queue is met by waiting for the oldest execution of the stream, then trying again.
//
// Note [Waiting for what is outside]
// A collective, or whatever else is a Completion, is waited for by the stream's own thread, which lends itself to it meanwhile. Other
// streams have threads of their own, so what the completion needs of them is on its way.
//
// Note [A lost core]
// After a terminal status (NRT_EXEC_UNIT_UNRECOVERABLE) the streams of the process refuse further work: each record fails at once with that
// status, so that waits end and the error is seen.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/runtime/completion.h"
#include "csrc/runtime/stream.h"
#include "csrc/runtime/trainium/nrt_async.h"

namespace neuron::trainium {

/// An execution under way.
struct InFlight {
  std::unique_ptr<Request> request;
  std::shared_ptr<void> kept;  ///< what has to live until it has ended
  std::string name;
};

class TrainiumStream final : public Stream, public Awaiting {
 public:
  TrainiumStream(int device, int64_t id, int priority);

  uint64_t launch(Executable& exe, const uint64_t* words, size_t count) override {
    close_window();
    return launch_window(exe, words, count);
  }
  uint64_t launch_window(Executable& exe, const uint64_t* words, size_t count) override;
  void open_window(Window* window) override { window_.store(window, std::memory_order_release); }
  uint64_t call(std::function<void()> fn) override;
  uint64_t mark(TimeCell time) override;
  void wait_for(Stream& other, uint64_t sequence) override;
  void wait_for(std::shared_ptr<Completion> completion) override;
  void wait_for_window(std::shared_ptr<Completion> completion) override;
  bool query() override;
  void drain(uint64_t sequence) override;
  void raise_pending() override;

  /// For Executable::run(): the stream whose thread is calling. Null on other threads.
  static TrainiumStream* running();
  /// Adds an execution that run() has scheduled. Waits while too many are under way.
  void add(InFlight execution);
  /// Waits for the oldest execution under way; false when there is none.
  bool finish_oldest();

  // Note [Held launches]
  // Between hold() and release_held() or replace_held(), launches have their sequence numbers but wait beside the queue. Whatever else is
  // added (by another thread too), or waits for the stream, queues those that are held first, and then launches are no longer held.
  void hold();
  void release_held();
  /// One launch in the place of those that are held; none when they are no longer held.
  void replace_held(Executable& exe, const uint64_t* words, size_t count);
  /// They are never made: what is to take their place is known. Goes on holding, so that replace_held() can follow.
  void forget_held();

  /// At exit, with the stream drained.
  void end_thread();

 private:
  struct Record {
    uint64_t sequence = 0;
    std::function<void()> work;
    bool pipelined = false;  ///< a launch: need not wait for what is under way
    std::string name;
  };
  static constexpr size_t kInFlight = 3;
  static constexpr size_t kQueued = 1024;

  uint64_t push(std::function<void()> work, bool pipelined, std::string name);
  void release_locked();
  void wake_locked();
  void work_off();
  void run(Record& record);
  void complete(uint64_t sequence);
  void fail(std::exception_ptr error);

  std::mutex mutex_;
  std::condition_variable changed_;  // records added, sequences completed
  std::deque<Record> records_;
  std::vector<Record> held_;
  bool holding_ = false;
  std::thread::id holder_;
  std::thread thread_;

  // Of the stream's own thread.
  std::deque<std::pair<uint64_t, InFlight>> under_way_;
  uint64_t current_ = 0;  // the record that runs, or ran last
  bool working_ = false;  // it runs

  std::mutex error_mutex_;
  std::exception_ptr error_;
};

/// Set by the first terminal status; NRT_SUCCESS until then.
std::atomic<int>& lost_core();

/// Drains all streams and ends their threads, so that the runtime can be closed. Called at exit.
void shutdown_trainium_streams();

}  // namespace neuron::trainium
