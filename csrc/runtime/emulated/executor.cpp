#include "csrc/runtime/emulated/executor.h"

#include <sys/prctl.h>

#include "csrc/runtime/emulated/late_warnings.h"
#include "csrc/runtime/executable.h"

namespace neuron {
namespace {

constexpr auto kNap = std::chrono::microseconds(50);  // how often the worker looks again while there may be work
constexpr int kNapsBeforeSleep = 20;                  // then it sleeps until a producer kicks it
constexpr int kQuietNaps = 40;                        // naps without a new record after which the host counts as quiet

}  // namespace

/// Runs up to kBatch records that may run now; returns how many ran.
int Executor::run_batch(const std::vector<EmulatedStream*>& streams, bool host_is_quiet) {
  int ran = 0;
  blockers_.clear();
  for (auto* stream : streams) {
    while (ran < kBatch && !stream->idle() && !others_wait()) {
      bool serial = stream->next_is_serial();
      if (!serial && scarce() && !host_is_quiet) return ran;
      if (!stream->run_one()) {
        blockers_.push_back(std::exchange(blocker, nullptr));
        break;
      }
      ++ran;
      if (!serial && scarce()) return ran;  // look again whether the host has come back
    }
  }
  return ran;
}

void Executor::work() {
  prctl(PR_SET_NAME, "neuron-worker");
  keep_warnings();
  prctl(PR_SET_TIMERSLACK, 1000UL);  // naps of 50 us, not of 100
  uint64_t seen = 0;
  int naps = 0, quiet_naps = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    auto streams = snapshot();
    uint64_t total = total_enqueued(streams);
    quiet_naps = total == seen ? quiet_naps + 1 : 0;
    seen = total;
    const auto pending = std::count_if(streams.begin(), streams.end(), [](auto* s) { return !s->idle(); });
    int ran = 0;
    blockers_.clear();
    if (pending > 0 && !others_wait()) {
      if (!try_acquire()) {
        await_slot();
        continue;
      }
      ran = run_batch(streams, quiet_naps >= kQuietNaps);
      release();
    }
    if (ran > 0) {
      naps = 0;
      if (ran == kBatch) continue;
    }
    const bool all_blocked = pending > 0 && static_cast<size_t>(pending) == blockers_.size();
    std::unique_lock lock(sleep_mutex_);
    if ((pending > 0 && !all_blocked) || ++naps < kNapsBeforeSleep) {
      work_cv_.wait_for(lock, kNap);
      continue;
    }
    sleep(lock, streams, seen);
    naps = 0;
  }
}

/// The worker lies still while another thread is at work: a nap each 50 us would push its team off the cores.
/// The holder wakes it if it leaves work behind, and a producer if it adds some that is worth it.
void Executor::await_slot() {
  std::unique_lock lock(sleep_mutex_);
  sleeping_.store(true, std::memory_order_seq_cst);
  wants_slot_.store(true, std::memory_order_seq_cst);
  work_cv_.wait(lock, [&] {
    return !sleeping_.load(std::memory_order_relaxed) || stopping_.load(std::memory_order_relaxed) ||
           !busy_.load(std::memory_order_seq_cst);
  });
  wants_slot_.store(false, std::memory_order_relaxed);
  sleeping_.store(false, std::memory_order_relaxed);
}

void Executor::offer_slot() {
  const auto streams = snapshot();
  if (std::any_of(streams.begin(), streams.end(), [](auto* s) { return !s->idle(); })) kick();
}

/// Until a producer or a completion kicks. One that missed the flags is caught by a second look.
void Executor::sleep(std::unique_lock<std::mutex>& lock, const std::vector<EmulatedStream*>& streams, uint64_t seen) {
  sleeping_.store(true, std::memory_order_seq_cst);
  worker_blocked_.store(!blockers_.empty(), std::memory_order_seq_cst);
  const bool late = total_enqueued(streams) != seen || std::any_of(blockers_.begin(), blockers_.end(), [](auto& b) { return b->ready(); });
  if (late) {
    sleeping_.store(false, std::memory_order_relaxed);
  } else {
    work_cv_.wait(lock, [&] { return !sleeping_.load(std::memory_order_relaxed) || stopping_.load(std::memory_order_relaxed); });
  }
  worker_blocked_.store(false, std::memory_order_relaxed);
}

bool runs_streams() { return holding_slot; }

void set_compute_threads(int threads) { Executor::get().set_threads(threads); }
int compute_threads() { return Executor::get().threads(); }

void shutdown_streams() { Executor::get().shutdown(); }

}  // namespace neuron
