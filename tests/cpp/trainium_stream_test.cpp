// Streams of the Trainium target on requests of our own: how many are under way, and in which order they are seen to end.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/runtime/executable.h"
#include "csrc/runtime/trainium/stream.h"
#include "tests/cpp/check.h"

using namespace neuron;
using namespace neuron::trainium;

namespace {

/// Streams live for ever, and so do what they name.
TrainiumStream& new_stream() {
  static std::atomic<int64_t> id{1000};
  return *new TrainiumStream(0, ++id, 0);
}

/// A request that ends when it is waited for.
class Counted final : public Request {
 public:
  explicit Counted(int& under_way) : under_way_(under_way) { ++under_way_; }
  bool done() override { return false; }
  NRT_STATUS wait() override {
    --under_way_;
    return NRT_SUCCESS;
  }

 private:
  int& under_way_;
};

/// Schedules a request, and notes how many were under way before it.
class Scheduler final : public Executable {
 public:
  std::vector<int> met;
  int under_way = 0;

  void run(const uint64_t*) override {
    met.push_back(under_way);
    TrainiumStream::running()->add({std::make_unique<Counted>(under_way), {}, name()});
  }
  const char* name() const override { return "test"; }
};

/// A record that waits until it is opened, so that what follows is queued by then.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace

TEST(a_trainium_stream_keeps_its_pipeline_full) {
  auto& stream = new_stream();
  static Scheduler scheduler;
  Gate gate;
  stream.call([&] { gate.wait(); });
  for (int i = 0; i < 8; ++i) stream.launch(scheduler, nullptr, 0);
  gate.open();
  static_cast<Stream&>(stream).drain();
  CHECK(scheduler.met == std::vector<int>({0, 1, 2, 3, 3, 3, 3, 3}));
  CHECK_EQ(scheduler.under_way, 0);
}

namespace {

/// One record with several executions, as a window that runs call by call. Notes whether its end was announced before the last has ended.
class Several final : public Executable {
 public:
  static constexpr int kCalls = 6;
  TrainiumStream& stream;
  uint64_t sequence = 0;
  int ended = 0;
  bool early = false;

  explicit Several(TrainiumStream& stream) : stream(stream) {}

  void run(const uint64_t*) override {
    for (int i = 0; i < kCalls; ++i) stream.add({std::make_unique<Call>(*this), {}, name()});
  }
  const char* name() const override { return "window"; }

 private:
  class Call final : public Request {
   public:
    explicit Call(Several& window) : window_(window) {}
    bool done() override { return false; }
    NRT_STATUS wait() override {
      if (static_cast<Stream&>(window_.stream).reached(window_.sequence)) window_.early = true;
      ++window_.ended;
      return NRT_SUCCESS;
    }

   private:
    Several& window_;
  };
};

}  // namespace

TEST(a_trainium_stream_reaches_a_window_when_all_its_executions_have_ended) {
  auto& stream = new_stream();
  static Several window(stream);
  Gate gate;
  stream.call([&] { gate.wait(); });
  window.sequence = stream.launch(window, nullptr, 0);
  gate.open();
  static_cast<Stream&>(stream).drain(window.sequence);
  CHECK(!window.early);
  CHECK_EQ(window.ended, Several::kCalls);
}

TEST(a_host_function_of_a_trainium_stream_waits_for_what_is_under_way) {
  auto& stream = new_stream();
  static Scheduler scheduler;
  int met = -1;
  stream.launch(scheduler, nullptr, 0);
  stream.launch(scheduler, nullptr, 0);
  const uint64_t called = stream.call([&] { met = scheduler.under_way; });
  static_cast<Stream&>(stream).drain(called);
  CHECK_EQ(met, 0);
}
