// The compute slot of a process, the worker thread, and the threads that wait: see Note [Who runs the work] in stream.h.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/runtime/emulated/stream.h"

namespace neuron {

constexpr uint64_t kKickBacklog = 16;                     // serial records that may lie idle before a producer kicks
constexpr int kBatch = 64;                                // records that the worker runs before it looks around
constexpr auto kPatience = std::chrono::milliseconds(2);  // a blocked thread that holds the slot looks again whether others can run

/// True while this thread holds the compute slot: a kernel may need a drain itself (memory is full) and must not wait for itself.
inline thread_local bool holding_slot = false;

/// What the record that run_one() could not run waits for.
inline thread_local std::shared_ptr<Completion> blocker;

/// The compute slot, the worker, and the threads that wait.
class Executor {
 public:
  static Executor& get() {
    static Executor* executor = new Executor;  // leaked: threads may outlive static destructors
    return *executor;
  }

  void add(EmulatedStream* stream) {
    std::lock_guard lock(streams_mutex_);
    streams_.push_back(stream);
    // Lower numbers run first; among equals the older stream.
    std::stable_sort(streams_.begin(), streams_.end(), [](auto* a, auto* b) { return a->priority < b->priority; });
    if (!worker_.joinable() && !stopping_) {
      owner_ = getpid();
      Completion::on_done = [] { get().unblock(); };
      std::atexit([] { shutdown_streams(); });
      worker_ = std::thread([this] { work(); });
    }
  }

  /// A producer's nudge; cheap unless the worker sleeps and the work is worth waking it.
  void added(const EmulatedStream& stream, bool urgent) {
    if (sleeping_.load(std::memory_order_seq_cst) && (urgent || stream.queued() - stream.completed() >= kKickBacklog)) kick();
  }

  void kick() {
    std::lock_guard lock(sleep_mutex_);
    sleeping_.store(false, std::memory_order_relaxed);
    work_cv_.notify_one();
  }

  bool try_acquire() {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    holding_slot = true;
    return true;
  }

  void release() {
    holding_slot = false;
    busy_.store(false, std::memory_order_seq_cst);
    if (wants_slot_.load(std::memory_order_seq_cst)) offer_slot();
    if (waiting_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard lock(done_mutex_);
      done_cv_.notify_all();
    }
  }

  /// Waits until the slot is free or `done()`; true when the caller now holds the slot.
  template <class Done>
  bool acquire_unless(Done done) {
    for (;;) {
      if (done()) return false;
      if (try_acquire()) return true;
      waiting_.fetch_add(1, std::memory_order_seq_cst);
      {
        std::unique_lock lock(done_mutex_);
        done_cv_.wait(lock, [&] { return done() || !busy_.load(std::memory_order_seq_cst); });
      }
      waiting_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  /// With the slot held: runs `stream` until it has reached `sequence`; false when it is blocked before.
  bool run_until(EmulatedStream& stream, uint64_t sequence) {
    while (!stream.reached(sequence))
      if (!stream.run_one()) return false;
    return true;
  }

  /// The same for a thread that cannot let go of the slot: while `stream` is blocked, it runs all others.
  void insist(EmulatedStream& stream, uint64_t sequence) {
    while (!run_until(stream, sequence)) {
      const auto awaited = std::exchange(blocker, nullptr);
      for (auto* other : snapshot())
        while (!other->running_ && !other->idle() && other->run_one()) {
        }
      blocker = nullptr;
      const auto until = std::chrono::steady_clock::now() + kPatience;
      awaited->help([&] { return stream.reached(sequence) || std::chrono::steady_clock::now() >= until; });
    }
  }

  /// A completion is done: whoever was blocked by it goes on.
  void unblock() {
    if (worker_blocked_.load(std::memory_order_seq_cst)) kick();
    if (waiting_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard lock(done_mutex_);
      done_cv_.notify_all();
    }
  }

  bool others_wait() const { return waiting_.load(std::memory_order_relaxed) > 0; }
  int threads() const { return threads_.load(std::memory_order_relaxed); }
  void set_threads(int threads) { threads_.store(threads, std::memory_order_relaxed); }

  void shutdown() {
    if (getpid() != owner_ || stopping_.exchange(true)) return;
    kick();
    if (worker_.joinable()) worker_.join();
    for (auto* stream : snapshot()) stream->drain(stream->queued());
  }

 private:
  std::vector<EmulatedStream*> snapshot() {
    std::lock_guard lock(streams_mutex_);
    return streams_;
  }

  bool scarce() const { return threads_.load(std::memory_order_relaxed) + 1 > cores_; }

  uint64_t total_enqueued(const std::vector<EmulatedStream*>& streams) const {
    uint64_t total = 0;
    for (auto* s : streams) total += s->queued();
    return total;
  }

  void work();
  int run_batch(const std::vector<EmulatedStream*>& streams, bool host_is_quiet);
  void offer_slot();
  void await_slot();
  void sleep(std::unique_lock<std::mutex>& lock, const std::vector<EmulatedStream*>& streams, uint64_t seen);

  const int cores_ = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  std::atomic<int> threads_{1};
  std::atomic<bool> busy_{false};
  std::atomic<int> waiting_{0};
  std::mutex done_mutex_;
  std::condition_variable done_cv_;

  std::mutex streams_mutex_;
  std::vector<EmulatedStream*> streams_;

  std::mutex sleep_mutex_;
  std::condition_variable work_cv_;
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> worker_blocked_{false};            // it sleeps although there is work
  std::atomic<bool> wants_slot_{false};                // it sleeps because another thread holds the slot
  std::vector<std::shared_ptr<Completion>> blockers_;  // the worker's: what the streams of its last batch wait for
  std::atomic<bool> stopping_{false};
  std::thread worker_;
  pid_t owner_ = 0;
};

}  // namespace neuron
