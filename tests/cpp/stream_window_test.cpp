// Several host threads on one stream: its window is counted all the time, gets the place that was promised, and an inline run has the
// stream for itself.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "csrc/runtime/emulated/stream.h"
#include "csrc/runtime/executable.h"
#include "tests/cpp/check.h"

using namespace neuron;

namespace {

/// Half a second: what goes wrong between threads does so once in many thousand rounds.
class Stopwatch {
 public:
  bool running() const { return std::chrono::steady_clock::now() < end_; }

 private:
  const std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
};

Stream& new_stream() {
  static std::atomic<int64_t> id{1'000'000};
  return *make_emulated_stream(0, ++id, 0);
}

/// A window of one launch, as csrc/aten/window.h closes its own.
class OneLaunch final : public Window, public Executable {
 public:
  explicit OneLaunch(Stream& stream) : stream_(stream) {}

  /// Returns the number that the stream promises for the record.
  uint64_t open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    stream_.open_window(this);
    return stream_.enqueued();
  }
  void close() override {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
      if (runs_streams()) return;  // the holder may wait for this thread to let go of the slot
      lock.lock();
    }
    if (!open_) return;
    open_ = false;
    place_ = stream_.launch_window(*this, nullptr, 0);
    stream_.forget_window();
  }
  uint64_t place() {
    std::lock_guard lock(mutex_);
    return place_;
  }

  void run(const uint64_t*) override {}
  const char* name() const override { return "window"; }

 private:
  Stream& stream_;
  std::mutex mutex_;
  bool open_ = false;
  uint64_t place_ = 0;
};

}  // namespace

TEST(stream_counts_a_window_until_it_is_queued) {
  Stream& stream = new_stream();
  OneLaunch window(stream);
  std::atomic<bool> done{false};
  std::thread closer([&] {
    while (!done.load()) stream.close_window();
  });
  int too_few = 0, not_waited_for = 0;
  const Stopwatch watch;
  for (uint64_t round = 1; watch.running(); ++round) {
    window.open();
    for (int look = 0; look < 8; ++look) too_few += stream.enqueued() < round;
    stream.drain();
    not_waited_for += !stream.reached(round);
  }
  done = true;
  closer.join();
  CHECK_EQ(too_few, 0);
  CHECK_EQ(not_waited_for, 0);
}

TEST(stream_gives_a_window_the_place_that_it_promised) {
  Stream& stream = new_stream();
  OneLaunch window(stream);
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done.load()) stream.mark(nullptr);
  });
  int elsewhere = 0;
  const Stopwatch watch;
  while (watch.running()) {
    const uint64_t promised = window.open();
    stream.drain();
    elsewhere += window.place() != promised;
  }
  done = true;
  other.join();
  stream.drain();
  CHECK_EQ(elsewhere, 0);
}

TEST(stream_is_an_inline_runs_alone) {
  Stream& stream = new_stream();
  OneLaunch window(stream);
  std::atomic<bool> done{false};
  std::thread adds([&] {
    while (!done.load()) stream.mark(nullptr);
  });
  std::thread opens([&] {
    while (!done.load()) window.open();
  });
  int busy = 0;
  const Stopwatch watch;
  while (watch.running()) {
    InlineRun alone(stream);
    for (int look = 0; look < 8; ++look) busy += stream.enqueued() != stream.completed();
    stream.drain();      // as a kernel does that finds the memory full
    stream.call([] {});  // its own work it may add
    stream.drain();
  }
  done = true;
  adds.join();
  opens.join();
  CHECK_EQ(busy, 0);
  stream.drain();
}

TEST(stream_keeps_others_waiting_during_an_inline_run) {
  Stream& stream = new_stream();
  OneLaunch window(stream);
  std::atomic<int> passed{0};
  std::vector<std::thread> others;
  {
    InlineRun alone(stream);
    others.emplace_back([&] { stream.mark(nullptr), ++passed; });
    others.emplace_back([&] { window.open(), ++passed; });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK_EQ(passed.load(), 0);
    CHECK_EQ(stream.enqueued(), uint64_t{0});
  }
  for (auto& other : others) other.join();
  stream.drain();
  CHECK_EQ(stream.completed(), uint64_t{2});
}
