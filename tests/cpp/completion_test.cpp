// Streams that wait for something outside of them: what they wait for needs the same process's other streams, comes late, fails.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "csrc/runtime/completion.h"
#include "csrc/runtime/emulated/stream.h"
#include "tests/cpp/check.h"

using namespace neuron;

namespace {

EmulatedStream& new_stream() {
  static std::atomic<int64_t> id{1000};
  return static_cast<EmulatedStream&>(*make_emulated_stream(0, ++id, 0));
}

/// Done when the test says so.
class Signal final : public Completion {
 public:
  std::vector<StreamPoint> needs() override {
    std::vector<StreamPoint> open;
    for (auto point : points)
      if (!point.first->reached(point.second)) open.push_back(point);
    return open;
  }
  void help(const std::function<bool()>& stop) override {
    helped = true;
    while (!done() && !stop()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void give(std::exception_ptr error = nullptr) { finish(std::move(error)); }

  std::vector<StreamPoint> points;
  std::atomic<bool> helped{false};
};

}  // namespace

TEST(nothing_passes_a_completion_before_it_is_done) {
  auto& stream = new_stream();
  auto signal = std::make_shared<Signal>();
  std::atomic<int> ran{0};
  stream.call([&] { ++ran; });
  stream.wait_for(signal);
  stream.call([&] { ran += 10; });
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(ran == 1);
    signal->give();
  });
  stream.synchronize();
  CHECK(ran == 11);
  CHECK(signal->helped);
  late.join();
}

TEST(a_blocked_stream_does_not_hold_up_others) {
  auto& blocked = new_stream();
  auto& free = new_stream();
  auto signal = std::make_shared<Signal>();
  std::atomic<int> ran{0};
  blocked.wait_for(signal);
  blocked.call([&] { ++ran; });
  free.call([&] { ran += 10; });
  std::thread waits([&] { blocked.synchronize(); });
  free.synchronize();
  CHECK(ran == 10);
  signal->give();
  waits.join();
  CHECK(ran == 11);
}

TEST(who_waits_runs_what_the_completion_needs) {
  auto& source = new_stream();
  auto& stream = new_stream();
  auto signal = std::make_shared<Signal>();
  const uint64_t point = source.call([&] { signal->give(); });
  signal->points = {{&source, point}};
  stream.wait_for(signal);
  stream.synchronize();
  CHECK(source.reached(point));
}

TEST(waits_through_a_second_stream_are_blocked_too) {
  auto& first = new_stream();
  auto& second = new_stream();
  auto signal = std::make_shared<Signal>();
  std::atomic<bool> ran{false};
  first.wait_for(signal);
  const uint64_t point = first.call([&] { ran = true; });
  second.wait_for(static_cast<Stream&>(first), point);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    signal->give();
  });
  second.synchronize();
  CHECK(ran);
  late.join();
}

TEST(the_worker_goes_on_when_the_completion_is_done) {
  auto& stream = new_stream();
  auto signal = std::make_shared<Signal>();
  std::mutex mutex;
  std::condition_variable changed;
  bool ran = false;
  stream.wait_for(signal);
  stream.call([&] {
    std::lock_guard lock(mutex);
    ran = true;
    changed.notify_all();
  });
  stream.query();  // wakes the worker, which finds the stream blocked and sleeps
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  signal->give();
  std::unique_lock lock(mutex);
  CHECK(changed.wait_for(lock, std::chrono::seconds(10), [&] { return ran; }));
  lock.unlock();
  static_cast<Stream&>(stream).drain();
}

TEST(what_a_completion_failed_with_is_the_streams_error_once) {
  auto& stream = new_stream();
  auto signal = std::make_shared<Signal>();
  std::atomic<bool> ran{false};
  stream.wait_for(signal);
  stream.call([&] { ran = true; });
  signal->give(std::make_exception_ptr(std::runtime_error("a rank is gone")));
  std::string text;
  try {
    stream.synchronize();
  } catch (const std::exception& error) {
    text = error.what();
  }
  CHECK(text == "a rank is gone");
  CHECK(ran);
  stream.synchronize();
}

TEST(a_full_queue_behind_a_completion_lets_the_producer_go_on_when_it_is_done) {
  auto& stream = new_stream();
  auto signal = std::make_shared<Signal>();
  std::atomic<int> ran{0};
  stream.wait_for(signal);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    signal->give();
  });
  for (int i = 0; i < 3000; ++i) stream.call([&] { ++ran; });
  stream.synchronize();
  CHECK(ran == 3000);
  late.join();
}

TEST(a_record_that_waits_itself_runs_other_streams_meanwhile) {
  auto& blocked = new_stream();
  auto& other = new_stream();
  auto& outer = new_stream();
  auto signal = std::make_shared<Signal>();
  blocked.wait_for(signal);
  const uint64_t point = blocked.call([] {});
  other.call([&] { signal->give(); });  // not among what the completion says that it needs
  outer.call([&] { blocked.drain(point); });
  outer.synchronize();
  CHECK(blocked.reached(point));
}
