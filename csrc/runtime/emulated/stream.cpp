#include "csrc/runtime/emulated/stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "csrc/runtime/dropping.h"
#include "csrc/runtime/emulated/executor.h"
#include "csrc/runtime/emulated/late_warnings.h"
#include "csrc/runtime/executable.h"
#include "csrc/runtime/settings.h"

namespace neuron {

HostWait host_wait;
std::atomic<bool> dropping_launches{false};
void (*Completion::on_done)() = nullptr;

namespace {

// Record layout: [header][subject][words...]; header = kind | serial << 8 | calls << 9 | count << 32. A record moves the stream's sequence
// number on by its calls.
enum Kind : uint64_t { kSkip, kLaunch, kLaunchHeap, kCall, kMark, kWait, kAwait };
constexpr size_t kPrefix = 2;

constexpr uint64_t kMostPending = 1024;                 // calls a stream may hold back, as many as launches on CUDA
constexpr auto kRelief = std::chrono::milliseconds(2);  // a producer that meets a full queue runs records for this long, then goes on

// The stream that this thread has for itself, see InlineRun.
thread_local EmulatedStream* inline_stream = nullptr;

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
        if (!dropping_launches.load(std::memory_order_relaxed)) exe->run(slot + kPrefix);
        break;
      case kLaunchHeap: {
        std::unique_ptr<uint64_t[]> words(reinterpret_cast<uint64_t*>(slot[kPrefix]));
        if (!dropping_launches.load(std::memory_order_relaxed)) exe->run(words.get());
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

}  // namespace neuron
