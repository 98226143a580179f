// Streams of the emulated target: order, back pressure, errors, events across streams, priorities, and all of it at once from many
// threads. Under TSan the plain variables that the records touch prove that one record happens before the next.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "csrc/runtime/emulated/stream.h"
#include "csrc/runtime/event.h"
#include "csrc/runtime/executable.h"
#include "tests/cpp/check.h"

using namespace neuron;

namespace {

constexpr uint64_t ring_words = 1024;

/// A stream with a small ring, so that it is full most of the time. Streams live for ever: each test makes its own.
Stream& new_stream(int priority = 0) {
  setenv("TORCH_NEURONX_QUEUE_SIZE", std::to_string(ring_words).c_str(), 1);
  static std::atomic<int64_t> id{0};
  return *make_emulated_stream(0, ++id, priority);
}

/// Runs what it was given; the words are the function's to read.
class Function final : public Executable {
 public:
  explicit Function(std::function<void(const uint64_t*)> body, bool is_serial = true) : body_(std::move(body)) { serial = is_serial; }
  void run(const uint64_t* words) override { body_(words); }
  const char* name() const override { return "test"; }

 private:
  std::function<void(const uint64_t*)> body_;
};

/// Polls until the stream is idle, as a user's loop over query() would; false after ten seconds.
bool poll(Stream& stream) {
  for (int i = 0; i < 100'000; ++i) {
    if (stream.query()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

/// How often the worker has gone to sleep; 0 where there is no worker.
long worker_naps() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string line;
    bool is_worker = false;
    while (std::getline(status, line)) {
      if (line == "Name:\tneuron-worker") is_worker = true;
      constexpr std::string_view voluntary = "voluntary_ctxt_switches:";
      if (is_worker && line.compare(0, voluntary.size(), voluntary) == 0) return std::stol(line.substr(voluntary.size()));
    }
  }
  return 0;
}

std::string message_of(Stream& stream) {
  try {
    stream.synchronize();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(stream_keeps_order_when_the_ring_is_full) {
  Stream& stream = new_stream();
  std::vector<uint64_t> seen;
  Function append([&](const uint64_t* words) { seen.push_back(words[0] + words[1]); });
  constexpr uint64_t count = 20'000;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t words[] = {i, 2 * i};
    CHECK_EQ(stream.launch(append, words, 2), i + 1);
  }
  stream.synchronize();
  CHECK_EQ(stream.completed(), count);
  CHECK_EQ(seen.size(), count);
  for (uint64_t i = 0; i < count; ++i) CHECK_EQ(seen[i], 3 * i);
}

TEST(stream_takes_launches_of_any_length) {
  Stream& stream = new_stream();
  uint64_t sum = 0, expected = 0;
  for (uint64_t length : {uint64_t{0}, uint64_t{1}, ring_words / 8, ring_words / 8 + 1, ring_words - 2, ring_words, 10 * ring_words}) {
    Function add([&sum, length](const uint64_t* words) {
      for (uint64_t i = 0; i < length; ++i) sum += words[i];
    });
    const std::vector<uint64_t> words(length, length + 1);
    for (int repeat = 0; repeat < 3; ++repeat) stream.launch(add, words.data(), length);
    expected += 3 * length * (length + 1);
    stream.synchronize();
  }
  CHECK_EQ(sum, expected);
}

TEST(stream_raises_the_first_error_once_and_goes_on) {
  Stream& stream = new_stream();
  int ran = 0;
  stream.call([] { throw std::runtime_error("first"); });
  stream.call([] { throw std::runtime_error("second"); });
  stream.call([&] { ++ran; });
  stream.drain();
  CHECK(stream.has_pending());
  CHECK_EQ(message_of(stream), std::string("first"));
  CHECK(!stream.has_pending());
  CHECK_EQ(message_of(stream), std::string());
  CHECK_EQ(ran, 1);
}

TEST(stream_finishes_by_polling_alone) {
  set_compute_threads(1 << 10);  // cores are scarce: parallel records wait for the host to fall quiet
  for (bool serial : {true, false}) {
    Stream& stream = new_stream();
    int ran = 0;
    Function count([&](const uint64_t*) { ++ran; }, serial);
    for (int i = 0; i < 50; ++i) stream.launch(count, nullptr, 0);
    CHECK(poll(stream));
    stream.synchronize();  // orders the reads below after the worker's writes
    CHECK_EQ(ran, 50);
  }
  set_compute_threads(1);
}

TEST(worker_lies_still_while_another_thread_is_at_work) {
  Stream &held = new_stream(), &waiting = new_stream();
  std::atomic<int> ran{0};
  Function add_one([&](const uint64_t*) { ++ran; });
  long before = 0, after = 0;
  {
    InlineRun inline_run(held);
    waiting.launch(add_one, nullptr, 0);
    CHECK(!waiting.query());  // which wakes the worker
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    before = worker_naps();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    after = worker_naps();
    CHECK_EQ(ran, 0);
  }
  CHECK(before > 0);
  CHECK(after - before < 100);  // a nap lasts 50 us
  // Nobody waits for what is left behind, and nobody asks for it.
  for (int i = 0; i < 100'000 && !waiting.reached(1); ++i) std::this_thread::sleep_for(std::chrono::microseconds(100));
  CHECK_EQ(ran, 1);
}

TEST(stream_with_the_lower_number_runs_first) {
  Stream &low = new_stream(0), &high = new_stream(-1);
  std::vector<char> order;
  {
    InlineRun alone(new_stream());  // nothing runs while the queues fill
    for (int i = 0; i < 3; ++i) low.call([&] { order.push_back('l'); });
    for (int i = 0; i < 3; ++i) high.call([&] { order.push_back('h'); });
  }
  CHECK(poll(low) && poll(high));
  low.synchronize();
  high.synchronize();
  CHECK_EQ(std::string(order.begin(), order.end()), std::string("hhhlll"));
}

TEST(event_orders_two_streams) {
  Stream &first = new_stream(), &second = new_stream();
  Event fresh(false);
  CHECK(fresh.query());
  fresh.synchronize();
  fresh.block(first);
  CHECK_EQ(first.enqueued(), uint64_t{0});

  int value = 0, seen = -1;
  Event written(true);
  {
    InlineRun alone(new_stream());
    first.call([&] { value = 42; });
    written.record(first);
    written.block(second);
    second.call([&] { seen = value; });
    CHECK(!written.query());
    CHECK_EQ(written.time_ns(), int64_t{0});
  }
  second.synchronize();
  CHECK_EQ(seen, 42);
  CHECK(written.query());
  CHECK(written.time_ns() > 0);
}

TEST(event_waits_may_cross) {
  // Each stream waits for the other in turns, far more often than the rings hold.
  Stream &a = new_stream(), &b = new_stream();
  int turn = 0, wrong = 0;
  for (int i = 0; i < 2'000; ++i) {
    Stream &now = i % 2 ? a : b, &next = i % 2 ? b : a;
    now.call([&, i] { wrong += turn++ != i; });
    Event done(false);
    done.record(now);
    done.block(next);
  }
  a.synchronize();
  b.synchronize();
  CHECK_EQ(turn, 2'000);
  CHECK_EQ(wrong, 0);
}

TEST(waiting_is_announced_and_paired) {
  static std::atomic<int> open{0}, begun{0};
  const HostWait before = host_wait;
  host_wait = {[]() -> void* { return ++open, ++begun, &open; }, [](void* state) { open -= state == &open; }};
  Stream& stream = new_stream();
  stream.call([] {});
  stream.synchronize();
  stream.call([] { throw std::runtime_error("x"); });
  CHECK_EQ(message_of(stream), std::string("x"));
  host_wait = before;
  CHECK_EQ(open.load(), 0);
}

// ---- Everything at once ---------------------------------------------------------------------------------------------------

namespace {

constexpr int producers = 4, streams = 6, steps = 20'000;

/// What one stream's records see; plain variables, since records of a stream follow one another.
struct Lane {
  Stream* stream = nullptr;
  uint64_t last[producers] = {};  // the number each producer gave its latest launch here
  uint64_t ran = 0;
  uint64_t out_of_order = 0;
  std::unique_ptr<Function> take;      // serial
  std::unique_ptr<Function> take_all;  // parallel
};

struct Outcome {
  uint64_t launched[streams] = {};
  uint64_t errors = 0, unordered_times = 0, stale_reads = 0;
  std::vector<std::unique_ptr<int>> cells;  // written in one stream, read in another
};

/// A value written in one stream and read in another, ordered by nothing but an event.
void hand_over(Stream& from, Stream& to, int value, Outcome& outcome) {
  int* cell = outcome.cells.emplace_back(std::make_unique<int>(-1)).get();
  auto* stale = &outcome.stale_reads;
  Event event(true);
  from.call([cell, value] { *cell = value; });
  event.record(from);
  event.block(to);
  to.call([cell, stale, value] { *stale += *cell != value; });
}

void wait(Stream& stream, bool for_event, Outcome& outcome) {
  if (!for_event) {
    stream.query();
    return stream.synchronize();
  }
  Event begin(true), end(true);
  begin.record(stream);
  end.record(stream);
  stream.drain(stream.enqueued());
  outcome.unordered_times += begin.time_ns() == 0 || end.time_ns() < begin.time_ns();
  end.synchronize();
}

void produce(int self, std::vector<Lane>& lanes, Outcome& outcome) {
  std::mt19937 random(self);
  const auto pick = [&](int n) { return static_cast<int>(random() % n); };
  std::vector<uint64_t> big(ring_words / 4);
  uint64_t number[streams] = {};
  for (int step = 0; step < steps; ++step) {
    const int at = pick(streams);
    Lane& lane = lanes[at];
    const int what = pick(100);
    if (what < 80) {
      big[0] = self;
      big[1] = ++number[at];
      lane.stream->launch(pick(2) ? *lane.take : *lane.take_all, big.data(), pick(20) ? 2 : big.size());
      ++outcome.launched[at];
    } else if (what < 90) {
      hand_over(*lane.stream, *lanes[pick(streams)].stream, step, outcome);
    } else if (what < 93) {
      lane.stream->call([] { throw std::runtime_error("expected"); });
    } else {
      try {
        wait(*lane.stream, what < 96, outcome);
      } catch (const std::runtime_error&) {
        ++outcome.errors;
      }
    }
  }
}

void take(Lane& lane, const uint64_t* words) {
  lane.out_of_order += words[1] != ++lane.last[words[0]];
  ++lane.ran;
}

}  // namespace

TEST(stress_threads_streams_events) {
  std::vector<Lane> lanes(streams);
  for (int i = 0; i < streams; ++i) {
    Lane& lane = lanes[i];
    lane.stream = &new_stream(i % 3 - 1);
    lane.take = std::make_unique<Function>([&lane](const uint64_t* words) { take(lane, words); });
    lane.take_all = std::make_unique<Function>([&lane](const uint64_t* words) { take(lane, words); }, false);
  }
  set_compute_threads(2);
  std::vector<Outcome> outcomes(producers);
  std::vector<std::thread> threads;
  for (int i = 0; i < producers; ++i) threads.emplace_back([&, i] { produce(i, lanes, outcomes[i]); });
  for (auto& thread : threads) thread.join();
  for (Lane& lane : lanes) lane.stream->drain();
  for (Lane& lane : lanes) message_of(*lane.stream);

  uint64_t errors = 0;
  for (int i = 0; i < streams; ++i) {
    uint64_t launched = 0;
    for (auto& outcome : outcomes) launched += outcome.launched[i];
    CHECK_EQ(lanes[i].ran, launched);
    CHECK_EQ(lanes[i].out_of_order, uint64_t{0});
    CHECK_EQ(lanes[i].stream->completed(), lanes[i].stream->enqueued());
    CHECK(!lanes[i].stream->has_pending());
  }
  for (auto& outcome : outcomes) {
    CHECK_EQ(outcome.stale_reads, uint64_t{0});
    CHECK_EQ(outcome.unordered_times, uint64_t{0});
    errors += outcome.errors;
  }
  CHECK(errors > 0);
  set_compute_threads(1);
}
