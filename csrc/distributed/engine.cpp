#include "csrc/distributed/engine.h"

#include <c10/util/Exception.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <utility>

#include "csrc/distributed/communicator.h"
#include "csrc/runtime/stream.h"

namespace neuron::distributed {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr auto kCheckEvery = milliseconds(100);  // looks at the peers and at time-outs
constexpr auto kDriverSleep = milliseconds(5);   // a waiting host thread looks at what it was told to stop for
constexpr auto kShortPark = microseconds(200);   // the engine's thread, beside a driver, at first
constexpr auto kLongPark = milliseconds(20);     // and later
constexpr auto kIdle = std::chrono::hours(24);
constexpr int kSpins = 400;                      // about 10 us of looking at the bell
constexpr auto kExitGrace = milliseconds(2000);  // for pending operations when the process ends

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, nanoseconds longest) {
  const timespec limit{static_cast<time_t>(longest.count() / 1'000'000'000), static_cast<long>(longest.count() % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace

// ---- Operation. ----

Operation::Progress Operation::step_staged(bool light) {
  if (light && bytes_of(to_host) + bytes_of(to_device) > kInlineBytes) return Progress::none;
  fetch(std::exchange(to_host, {}));
  const auto progress = step(light);
  if (progress == Progress::finished) deliver(to_device);
  return progress;
}

bool Operation::inputs_ready() const {
  return std::all_of(points.begin(), points.end(), [](const StreamPoint& point) { return point.first->reached(point.second); });
}

std::vector<StreamPoint> Operation::needs() {
  std::vector<StreamPoint> found;
  std::lock_guard<std::mutex> lock(Engine::get().submitting());
  std::vector<Operation*> chain;
  for (auto* operation = this; operation; operation = operation->previous.get()) chain.push_back(operation);
  std::reverse(chain.begin(), chain.end());
  for (auto* operation : chain) {
    if (operation->done()) continue;
    for (const auto& point : operation->points)
      if (!point.first->reached(point.second)) found.push_back(point);
  }
  return found;
}

void Operation::help(const std::function<bool()>& stop) {
  Engine::get().drive([&] { return done() || stop(); });
}

void await(Stream& stream, std::shared_ptr<Operation> operation) {
  auto* awaiting = dynamic_cast<Awaiting*>(&stream);
  TORCH_CHECK_NOT_IMPLEMENTED(awaiting, "Streams of this target cannot wait for collectives");
  awaiting->wait_for(std::move(operation));
}

// ---- Engine. ----

Engine& Engine::get() {
  static auto* const engine = new Engine;  // leaked: its thread may outlive static destructors
  return *engine;
}

void Engine::start() {
  std::atexit([] { get().settle_at_exit(); });
  std::thread([this] { work(); }).detach();
}

void Engine::add(const std::shared_ptr<Communicator>& communicator) {
  std::call_once(started_, [this] { start(); });
  excluded([&] { communicators_.push_back(communicator); });
}

void Engine::remove(const std::shared_ptr<Communicator>& communicator) {
  excluded([&] { std::erase(communicators_, communicator); });
}

void Engine::excluded(const std::function<void()>& what) {
  HostWaitScope wait;  // who steps may need the GIL to drop a tensor
  std::lock_guard<std::mutex> lock(stepping_);
  what();
}

void Engine::submit(const std::shared_ptr<Communicator>& communicator, Lane& lane, const std::shared_ptr<Operation>& operation) {
  pending_.fetch_add(1);
  communicator->pending_.fetch_add(1);
  {
    std::lock_guard<std::mutex> lock(submitting_);
    operation->previous = lane.last;
    lane.last = operation;
    submitted_.push_back({communicator, &lane, operation});
    any_submitted_.store(true, std::memory_order_release);
  }
}

void Engine::begin(const Operation& operation) {
  while (step(true)) {
  }
  if (!operation.done()) wake_own_thread();
}

void Engine::wake_own_thread() {
  if (parked_.load(std::memory_order_seq_cst)) {
    handoff_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(handoff_);
  } else if (asleep_.load(std::memory_order_seq_cst)) {
    own_bell().ring();
  }
}

/// False when nothing moved, or when another thread is at it.
bool Engine::step(bool light) {
  std::vector<std::shared_ptr<Operation>> done;
  bool moved = false;
  {
    std::unique_lock<std::mutex> lock(stepping_, std::try_to_lock);
    if (!lock) return false;
    if (any_submitted_.load(std::memory_order_acquire)) {
      std::lock_guard<std::mutex> submission(submitting_);
      for (auto& entry : submitted_) entry.lane->waiting.push_back(std::move(entry.operation));
      submitted_.clear();
      any_submitted_.store(false, std::memory_order_relaxed);
    }
    auto next = Clock::time_point::max();
    for (auto& communicator : communicators_) {
      moved |= communicator->step(light, &done);
      next = std::min(next, communicator->next_arrival());
    }
    const auto now = Clock::now();
    if (now >= next_check_ && pending_.load() > 0) {
      next_check_ = now + kCheckEvery;
      for (auto& communicator : communicators_) communicator->check(&done);
    }
    next_wake_ns_.store(next == Clock::time_point::max() ? 0 : next.time_since_epoch().count(), std::memory_order_relaxed);
  }
  if (done.empty()) return moved;
  pending_.fetch_sub(static_cast<int>(done.size()));
  for (auto& operation : done) {
    auto keep = std::move(operation->keep);  // may take the GIL: without a lock
  }
  own_bell().ring();
  return true;
}

nanoseconds Engine::longest_sleep() const {
  nanoseconds longest = pending_.load() > 0 ? nanoseconds(kCheckEvery) : nanoseconds(kIdle);
  if (const int64_t next = next_wake_ns_.load(std::memory_order_relaxed)) {
    const nanoseconds left = Clock::time_point(nanoseconds(next)) - Clock::now();
    longest = std::clamp(left, nanoseconds(0), longest);
  }
  return longest;
}

void Engine::drive(const std::function<bool()>& stop) {
  drivers_.fetch_add(1, std::memory_order_seq_cst);
  Doorbell& bell = own_bell();
  static const bool may_spin = sysconf(_SC_NPROCESSORS_ONLN) > 1;
  for (;;) {
    if (stop()) break;
    const uint32_t seen = bell.value();
    if (step(false)) continue;
    if (stop()) break;
    bool rung = false;
    for (int i = 0; may_spin && i < kSpins && !(rung = bell.value() != seen); ++i) __builtin_ia32_pause();
    if (!rung) bell.sleep(seen, std::min<nanoseconds>(longest_sleep(), kDriverSleep));
  }
  drivers_.fetch_sub(1, std::memory_order_seq_cst);
  if (pending_.load() > 0) wake_own_thread();
}

void Engine::work() {
  prctl(PR_SET_NAME, "neuron-cc");
  prctl(PR_SET_TIMERSLACK, 1000UL);
  Doorbell& bell = own_bell();
  nanoseconds park = kShortPark;
  while (!stopping_.load()) {
    const uint32_t seen = bell.value();
    const uint32_t handed = handoff_.load(std::memory_order_seq_cst);
    while (step(false)) {
    }
    if (drivers_.load(std::memory_order_seq_cst) > 0) {
      parked_.store(park > kShortPark, std::memory_order_seq_cst);
      futex_wait(handoff_, handed, park);
      parked_.store(false, std::memory_order_seq_cst);
      park = std::min<nanoseconds>(park * 2, kLongPark);
      continue;
    }
    park = kShortPark;
    asleep_.store(true, std::memory_order_seq_cst);
    if (bell.value() == seen && handoff_.load(std::memory_order_seq_cst) == handed && !any_submitted_.load())
      bell.sleep(seen, longest_sleep());
    asleep_.store(false, std::memory_order_seq_cst);
  }
}

/// What is pending when the process ends gets a moment: peers may be about to come. Then it is given up, so that nothing waits for it.
void Engine::settle_at_exit() {
  const auto until = Clock::now() + kExitGrace;
  drive([&] { return pending_.load() == 0 || Clock::now() >= until; });
  std::vector<std::shared_ptr<Communicator>> all;
  excluded([&] { all = communicators_; });
  for (auto& communicator : all) {
    if (communicator->idle())
      communicator->leave();
    else
      communicator->abort("the process is ending");
  }
  while (step(false)) {
  }
  stopping_.store(true);
  wake_own_thread();
}

}  // namespace neuron::distributed
