#include "csrc/runtime/emulated/stream.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "csrc/runtime/emulated/late_warnings.h"
#include "csrc/runtime/executable.h"
#include "csrc/runtime/settings.h"

namespace neuron {

HostWait host_wait;
void (*Completion::on_done)() = nullptr;

namespace {

// Record layout: [header][subject][words...]; header = kind | serial << 8 | calls << 9 | count << 32. A record moves the stream's sequence
// number on by its calls.
enum Kind : uint64_t { kSkip, kLaunch, kLaunchHeap, kCall, kMark, kWait, kAwait };
constexpr size_t kPrefix = 2;

constexpr auto kNap = std::chrono::microseconds(50);      // how often the worker looks again while there may be work
constexpr int kNapsBeforeSleep = 20;                      // then it sleeps until a producer kicks it
constexpr uint64_t kKickBacklog = 16;                     // serial records that may lie idle before a producer kicks
constexpr int kQuietNaps = 40;                            // naps without a new record after which the host counts as quiet
constexpr uint64_t kMostPending = 1024;                   // calls a stream may hold back, as many as launches on CUDA
constexpr auto kRelief = std::chrono::milliseconds(2);    // a producer that meets a full queue runs records for this long, then goes on
constexpr int kBatch = 64;                                // records that the worker runs before it looks around
constexpr auto kPatience = std::chrono::milliseconds(2);  // a blocked thread that holds the slot looks again whether others can run

// True while this thread holds the compute slot: a kernel may need a drain itself (memory is full) and must not wait for itself.
thread_local bool holding_slot = false;

// The stream that this thread has for itself, see InlineRun.
thread_local EmulatedStream* inline_stream = nullptr;

// What the record that run_one() could not run waits for.
thread_local std::shared_ptr<Completion> blocker;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t header(uint64_t kind, bool serial, uint64_t calls, size_t count) {
  return kind | uint64_t{serial} << 8 | calls << 9 | uint64_t{count} << 32;
}
uint64_t calls_of(uint64_t header) { return header >> 9 & 0x7fffff; }
uint64_t kind_of(uint64_t header) { return header & 0xff; }
bool serial_of(uint64_t header) { return (header >> 8 & 1) != 0; }
size_t count_of(uint64_t header) { return header >> 32; }

}  // namespace

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

// ---------------------------------------------------------------------------------------------------------------------

EmulatedStream::EmulatedStream(int device, int64_t id, int priority, size_t ring_words)
    : Stream(device, id, priority), ring_(ring_words), mask_(ring_words - 1) {}

/// The right to add to a stream. A thread that waits for it lets go of the GIL, which an inline run may need.
class EmulatedStream::Producing {
 public:
  explicit Producing(EmulatedStream& stream) : stream_(stream), inline_(inline_stream == &stream) { lock(); }
  ~Producing() {
    if (locked_) unlock();
  }
  Producing(const Producing&) = delete;
  Producing& operator=(const Producing&) = delete;

  void lock() {
    locked_ = true;
    if (inline_ || stream_.producer_.try_lock()) return;
    HostWaitScope wait;
    stream_.producer_.lock();
  }
  void unlock() {
    locked_ = false;
    if (!inline_) stream_.producer_.unlock();
  }

 private:
  EmulatedStream& stream_;
  const bool inline_;
  bool locked_ = false;
};

void EmulatedStream::open_window(Window* window) {
  Producing lock(*this);
  window_.store(window, std::memory_order_release);
}

/// Called with producer_ held: true when `words` fit now, with no word of a record wrapping around the end.
bool EmulatedStream::make_room(size_t words) {
  uint64_t left_before_end = ring_.size() - (tail_ & mask_);
  uint64_t need = words <= left_before_end ? words : left_before_end + words;
  if (ring_.size() - (tail_ - head_.load(std::memory_order_acquire)) < need) return false;
  if (words > left_before_end) {
    ring_[tail_ & mask_] = header(kSkip, true, 0, left_before_end);
    tail_ += left_before_end;
  }
  return true;
}

uint64_t EmulatedStream::push(uint64_t kind, uint64_t subject, const uint64_t* words, size_t count, bool serial, bool of_window,
                              uint64_t calls) {
  Producing lock(*this);
  for (;;) {
    // One that another thread works at stays open for a thread that runs the streams' work: it must not wait for that thread.
    const bool in_the_way = !of_window && window_.load(std::memory_order_acquire) != nullptr && !holding_slot;
    if (!in_the_way && queued() - completed() < kMostPending && make_room(kPrefix + count)) break;
    lock.unlock();
    if (in_the_way)
      close_window();
    else
      relieve();
    lock.lock();
  }
  uint64_t* slot = &ring_[tail_ & mask_];
  slot[0] = header(kind, serial, calls, count);
  slot[1] = subject;
  if (count) std::memcpy(slot + kPrefix, words, count * sizeof(uint64_t));
  tail_ += kPrefix + count;
  uint64_t sequence = enqueued_.load(std::memory_order_relaxed) + calls;
  enqueued_.store(sequence, std::memory_order_seq_cst);
  lock.unlock();
  Executor::get().added(*this, !serial);
  return sequence;
}

/// Back pressure. Brief, so that the thread comes back to Python, where Ctrl-C is seen, however long the queued work takes.
void EmulatedStream::relieve() {
  auto& executor = Executor::get();
  auto some_room = [&] { return queued() - completed() <= kMostPending - kBatch; };
  const auto until = std::chrono::steady_clock::now() + kRelief;
  auto late = [&] { return std::chrono::steady_clock::now() >= until; };
  auto run = [&] {
    do {
      if (!run_one()) return;
    } while (!idle() && !late());
  };
  if (idle()) return;
  if (holding_slot) {
    run();
  } else {
    HostWaitScope wait;
    if (!executor.acquire_unless([&] { return idle() || some_room(); })) return;
    if (!idle()) run();
    executor.release();
  }
  if (const auto awaited = std::exchange(blocker, nullptr)) {
    HostWaitScope wait;
    awaited->help([&] { return late() || some_room(); });
  }
}

uint64_t EmulatedStream::launch(Executable& exe, const uint64_t* words, size_t count, bool of_window) {
  if (!of_window) close_window();
  if (Capture* capture = this->capture()) [[unlikely]] {
    capture->add({&exe, nullptr, {words, words + count}});
    return queued();
  }
  auto subject = reinterpret_cast<uint64_t>(&exe);
  const uint64_t calls = of_window ? exe.calls : 1;
  if (count <= ring_.size() / 8) return push(kLaunch, subject, words, count, exe.serial, of_window, calls);
  auto* copy = new uint64_t[count];  // freed by run_one
  std::memcpy(copy, words, count * sizeof(uint64_t));
  auto address = reinterpret_cast<uint64_t>(copy);
  return push(kLaunchHeap, subject, &address, 1, exe.serial, of_window, calls);
}

uint64_t EmulatedStream::call(std::function<void()> fn) {
  close_window();
  if (Capture* capture = this->capture()) {
    capture->add({nullptr, std::move(fn), {}});
    return queued();
  }
  return push(kCall, reinterpret_cast<uint64_t>(new std::function<void()>(std::move(fn))), nullptr, 0, true);
}

uint64_t EmulatedStream::mark(TimeCell time) {
  close_window();
  return push(kMark, reinterpret_cast<uint64_t>(time ? new TimeCell(std::move(time)) : nullptr), nullptr, 0, true);
}

void EmulatedStream::wait_for(Stream& other, uint64_t sequence) {
  close_window();
  if (&other == this || other.reached(sequence)) return;
  sequence = std::min(sequence, other.added());
  push(kWait, reinterpret_cast<uint64_t>(&other), &sequence, 1, true);
}

void EmulatedStream::wait_for(std::shared_ptr<Completion> completion) {
  close_window();
  if (completion->done() && !completion->error()) return;
  push(kAwait, reinterpret_cast<uint64_t>(new std::shared_ptr<Completion>(std::move(completion))), nullptr, 0, true);
}

void EmulatedStream::wait_for_window(std::shared_ptr<Completion> completion) {
  push(kAwait, reinterpret_cast<uint64_t>(new std::shared_ptr<Completion>(std::move(completion))), nullptr, 0, true, /*of_window=*/true);
}

bool EmulatedStream::query() {
  close_window();
  if (idle()) return true;
  Executor::get().kick();
  return idle();
}

void EmulatedStream::drain(uint64_t sequence) {
  if (capture()) [[unlikely]] {
    throw std::runtime_error(
        "this stream is being captured into a graph, and the call would have to wait for the device (it reads a value, copies to "
        "pageable memory, or has a result whose shape depends on data): keep it out of the capture");
  }
  if (reached(sequence)) return;
  sequence = std::min(sequence, added());  // enqueued() may have promised the record of a window that another thread was closing
  auto& executor = Executor::get();
  HostWaitScope wait;
  if (holding_slot) return executor.insist(*this, sequence);
  auto reached_it = [&] { return reached(sequence); };
  // The holder of the slot may be at work for another stream: take over as soon as it pauses.
  while (executor.acquire_unless(reached_it)) {
    executor.run_until(*this, sequence);
    executor.release();
    if (const auto awaited = std::exchange(blocker, nullptr)) awaited->help(reached_it);
  }
}

bool EmulatedStream::next_is_serial() {
  uint64_t head = head_.load(std::memory_order_relaxed);
  uint64_t word = ring_[head & mask_];
  return kind_of(word) == kSkip ? serial_of(ring_[(head + count_of(word)) & mask_]) : serial_of(word);
}

/// With the slot held: true when `completion` is done, after running what it needs.
bool EmulatedStream::await(const std::shared_ptr<Completion>& completion) {
  completion->proceed();
  if (completion->done()) return true;
  for (auto [stream, sequence] : completion->needs())
    if (!Executor::get().run_until(static_cast<EmulatedStream&>(*stream), sequence)) return false;
  if (completion->done()) return true;
  blocker = completion;
  return false;
}

bool EmulatedStream::run_one() {
  uint64_t head = head_.load(std::memory_order_relaxed);
  if (uint64_t word = ring_[head & mask_]; kind_of(word) == kSkip) head += count_of(word);
  uint64_t* slot = &ring_[head & mask_];
  const size_t count = count_of(slot[0]);
  const uint64_t calls = calls_of(slot[0]);
  auto* exe = reinterpret_cast<Executable*>(slot[1]);
  running_ = true;
  try {
    switch (kind_of(slot[0])) {
      case kLaunch:
        exe->run(slot + kPrefix);
        break;
      case kLaunchHeap: {
        std::unique_ptr<uint64_t[]> words(reinterpret_cast<uint64_t*>(slot[kPrefix]));
        exe->run(words.get());
        break;
      }
      case kCall: {
        std::unique_ptr<std::function<void()>> fn(reinterpret_cast<std::function<void()>*>(slot[1]));
        (*fn)();
        break;
      }
      case kMark: {
        std::unique_ptr<TimeCell> time(reinterpret_cast<TimeCell*>(slot[1]));
        if (time) (*time)->store(now_ns(), std::memory_order_release);
        break;
      }
      case kWait: {
        auto* other = reinterpret_cast<EmulatedStream*>(slot[1]);
        if (Executor::get().run_until(*other, slot[kPrefix])) break;
        running_ = false;
        return false;
      }
      case kAwait: {
        auto* awaited = reinterpret_cast<std::shared_ptr<Completion>*>(slot[1]);
        if (!await(*awaited)) {
          running_ = false;
          return false;
        }
        std::unique_ptr<std::shared_ptr<Completion>> completion(awaited);
        if (auto error = (*completion)->error()) std::rethrow_exception(error);
        break;
      }
    }
  } catch (...) {
    fail(std::current_exception());
  }
  running_ = false;
  head_.store(head + kPrefix + count, std::memory_order_release);
  completed_.store(completed_.load(std::memory_order_relaxed) + calls, std::memory_order_release);
  return true;
}

void EmulatedStream::fail(std::exception_ptr error) {
  std::lock_guard lock(error_mutex_);
  if (!error_) error_ = std::move(error);
  has_pending_.store(true, std::memory_order_release);
}

void EmulatedStream::raise_pending() {
  deliver_warnings();
  if (!has_pending()) return;
  std::exception_ptr error;
  {
    std::lock_guard lock(error_mutex_);
    error = std::exchange(error_, nullptr);
    has_pending_.store(false, std::memory_order_release);
  }
  if (error) std::rethrow_exception(error);
}

Stream* make_emulated_stream(int device, int64_t id, int priority) {
  size_t words = 1024;
  while (words < static_cast<size_t>(settings().queue_words)) words *= 2;
  auto* stream = new EmulatedStream(device, id, priority, words);
  Executor::get().add(stream);
  return stream;
}

InlineRun::InlineRun(Stream& stream) : nested_(holding_slot), stream_(static_cast<EmulatedStream&>(stream)) {
  if (nested_) return;
  auto& executor = Executor::get();
  const bool captured = stream.capture() != nullptr;
  for (;;) {
    if (!captured) stream.drain();
    if (!executor.try_acquire()) {
      HostWaitScope wait;
      executor.acquire_unless([] { return false; });
    }
    try {
      if (captured || hold_stream()) return;
    } catch (...) {  // the window that was closed could not be run: no destructor of ours gives the slot back
      executor.release();
      throw;
    }
    executor.release();
    std::this_thread::yield();
  }
}

/// With the slot: false when work that others have added meanwhile must be waited for. (A thread that is at work at the stream's window may
/// want the slot, so it cannot be waited for here.)
bool InlineRun::hold_stream() {
  stream_.close_window();
  if (!stream_.producer_.try_lock()) return false;
  inline_stream = &stream_;
  if (stream_.window_.load(std::memory_order_acquire) == nullptr) {
    while (!stream_.idle() && stream_.run_one()) {
    }
    blocker = nullptr;
    if (stream_.idle()) return holds_stream_ = true;
  }
  let_go();
  return false;
}

void InlineRun::let_go() {
  inline_stream = nullptr;
  stream_.producer_.unlock();
}

InlineRun::~InlineRun() {
  if (holds_stream_) let_go();
  if (!nested_) Executor::get().release();
}

bool runs_streams() { return holding_slot; }

void set_compute_threads(int threads) { Executor::get().set_threads(threads); }
int compute_threads() { return Executor::get().threads(); }

void shutdown_streams() { Executor::get().shutdown(); }

}  // namespace neuron
