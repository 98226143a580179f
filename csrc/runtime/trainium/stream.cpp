#include "csrc/runtime/trainium/stream.h"

#include <c10/util/Exception.h>

#include <chrono>

#include "csrc/runtime/dropping.h"
#include "csrc/runtime/executable.h"
#include "csrc/runtime/settings.h"

namespace neuron::trainium {
namespace {

thread_local TrainiumStream* running_stream = nullptr;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::mutex registry_mutex;
std::vector<TrainiumStream*>& registry() {
  static auto* all = new std::vector<TrainiumStream*>;
  return *all;
}
std::atomic<bool> shutting_down{false};

}  // namespace

std::atomic<int>& lost_core() {
  static std::atomic<int> status{NRT_SUCCESS};
  return status;
}

TrainiumStream::TrainiumStream(int device, int64_t id, int priority) : Stream(device, id, priority) {
  std::lock_guard lock(registry_mutex);
  registry().push_back(this);
}

TrainiumStream* TrainiumStream::running() { return running_stream; }

// ---- Adding work ----

uint64_t TrainiumStream::push(std::function<void()> work, bool pipelined, std::string name) {
  std::unique_lock lock(mutex_);
  const auto holds = [&] { return holding_ && pipelined && holder_ == std::this_thread::get_id(); };
  if (!holds()) release_locked();
  if (records_.size() >= kQueued && !holds()) {
    HostWaitScope released;  // Ctrl-C is seen between calls: the queue drains while nothing is added
    changed_.wait(lock, [this] { return records_.size() < kQueued; });
  }
  const uint64_t sequence = enqueued_.load(std::memory_order_relaxed) + 1;
  enqueued_.store(sequence, std::memory_order_release);
  if (holds()) {
    held_.push_back({sequence, std::move(work), pipelined, std::move(name)});
    return sequence;
  }
  records_.push_back({sequence, std::move(work), pipelined, std::move(name)});
  wake_locked();
  return sequence;
}

/// For records that were added: the thread starts with the first one.
void TrainiumStream::wake_locked() {
  if (!thread_.joinable()) thread_ = std::thread([this] { work_off(); });
  changed_.notify_all();
}

void TrainiumStream::hold() {
  close_window();  // its launches are not among those that the graph's own one replaces
  std::lock_guard lock(mutex_);
  holding_ = true;
  holder_ = std::this_thread::get_id();
}

void TrainiumStream::release_locked() {
  if (held_.empty()) return;
  holding_ = false;
  for (auto& record : held_) records_.push_back(std::move(record));
  held_.clear();
  wake_locked();
}

void TrainiumStream::release_held() {
  std::lock_guard lock(mutex_);
  release_locked();
  holding_ = false;
}

void TrainiumStream::forget_held() {
  std::lock_guard lock(mutex_);
  if (held_.empty()) return;
  records_.push_back({held_.back().sequence, [] {}, false, "launches that are made in another way"});
  held_.clear();
  wake_locked();
}

void TrainiumStream::replace_held(Executable& exe, const uint64_t* words, size_t count) {
  std::lock_guard lock(mutex_);
  if (!holding_) return;
  holding_ = false;
  uint64_t sequence = 0;
  if (held_.empty()) {
    sequence = enqueued_.load(std::memory_order_relaxed) + 1;
    enqueued_.store(sequence, std::memory_order_release);
  } else {
    sequence = held_.back().sequence;  // those before it are reached with it
    held_.clear();
  }
  records_.push_back({sequence, [&exe, kept = std::vector<uint64_t>(words, words + count)] { exe.run(kept.data()); }, true, exe.name()});
  wake_locked();
}

uint64_t TrainiumStream::launch_window(Executable& exe, const uint64_t* words, size_t count) {
  std::vector<uint64_t> kept(words, words + count);
  if (Capture* taken = capture()) {
    taken->add({&exe, nullptr, std::move(kept)});
    return queued();
  }
  return push([&exe, kept = std::move(kept)] { exe.run(kept.data()); }, true, exe.name());
}

uint64_t TrainiumStream::call(std::function<void()> fn) {
  close_window();
  if (Capture* taken = capture()) {
    taken->add({nullptr, std::move(fn), {}});
    return queued();
  }
  return push(std::move(fn), false, "a host function");
}

uint64_t TrainiumStream::mark(TimeCell time) {
  close_window();
  if (capture()) {
    return call([time] {
      if (time) time->store(now_ns(), std::memory_order_release);
    });
  }
  return push(
      [time] {
        if (time) time->store(now_ns(), std::memory_order_release);
      },
      false, "an event");
}

void TrainiumStream::wait_for(Stream& other, uint64_t sequence) {
  close_window();
  sequence = std::min(sequence, other.added());
  if (&other == this || other.reached(sequence)) return;
  push([&other, sequence] { other.drain(sequence); }, false, "a wait for another stream");
}

void TrainiumStream::wait_for(std::shared_ptr<Completion> completion) {
  close_window();
  TORCH_CHECK(capture() == nullptr, "A stream that a graph captures cannot wait for a collective: call it outside of the capture.");
  if (completion->done() && !completion->error()) return;
  wait_for_window(std::move(completion));
}

void TrainiumStream::wait_for_window(std::shared_ptr<Completion> completion) {
  push(
      [awaited = std::move(completion)] {
        while (!awaited->done()) {
          awaited->proceed();
          awaited->help([] { return false; });
        }
        if (auto error = awaited->error()) std::rethrow_exception(error);
      },
      false, "a wait for a collective");
}

// ---- Waiting ----

bool TrainiumStream::query() {
  close_window();
  std::lock_guard lock(mutex_);
  release_locked();
  return completed() >= queued();
}

void TrainiumStream::drain(uint64_t sequence) {
  sequence = std::min(sequence, added());  // enqueued() may have promised the record of a window that another thread was closing
  TORCH_CHECK(capture() == nullptr, "The host cannot wait for a stream while a graph captures it.");
  if (reached(sequence)) return;
  HostWaitScope released;
  std::unique_lock lock(mutex_);
  release_locked();
  changed_.wait(lock, [&] { return reached(sequence); });
}

void TrainiumStream::raise_pending() {
  if (!has_pending()) return;
  std::exception_ptr error;
  {
    std::lock_guard lock(error_mutex_);
    error = std::exchange(error_, nullptr);
    has_pending_.store(false, std::memory_order_release);
  }
  if (error) std::rethrow_exception(error);
}

void TrainiumStream::fail(std::exception_ptr error) {
  std::lock_guard lock(error_mutex_);
  if (!error_) error_ = std::move(error);
  has_pending_.store(true, std::memory_order_release);
}

// ---- The stream's thread ----

void TrainiumStream::work_off() {
  running_stream = this;
  std::unique_lock lock(mutex_);
  while (true) {
    if (records_.empty() && !under_way_.empty()) {
      lock.unlock();
      finish_oldest();
      lock.lock();
      continue;
    }
    changed_.wait(lock, [this] { return !records_.empty() || shutting_down.load(); });
    if (records_.empty()) return;
    Record record = std::move(records_.front());
    records_.pop_front();
    changed_.notify_all();
    lock.unlock();
    run(record);
    lock.lock();
  }
}

void TrainiumStream::run(Record& record) {
  if (!record.pipelined) {
    while (finish_oldest()) {
    }
  }
  current_ = record.sequence;
  working_ = true;
  try {
    if (const auto lost = static_cast<NRT_STATUS>(lost_core().load()); lost != NRT_SUCCESS && record.pipelined) {
      raise_status(lost, "running " + record.name + " on a core that was lost earlier");
    }
    if (!record.pipelined || !dropping_launches.load(std::memory_order_relaxed)) record.work();
  } catch (...) {
    fail(std::current_exception());
  }
  working_ = false;
  // A record that scheduled nothing (or failed) has ended; but sequences complete in order.
  if (under_way_.empty() || under_way_.back().first != record.sequence) {
    while (finish_oldest()) {
    }
    complete(record.sequence);
  }
}

void TrainiumStream::add(InFlight execution) {
  under_way_.emplace_back(current_, std::move(execution));
  while (under_way_.size() > kInFlight) finish_oldest();
}

bool TrainiumStream::finish_oldest() {
  if (under_way_.empty()) return false;
  auto [sequence, execution] = std::move(under_way_.front());
  under_way_.pop_front();
  const NRT_STATUS status = execution.request->wait();
  execution.request.reset();
  execution.kept.reset();
  if (is_terminal(status)) lost_core().store(status);
  if (status != NRT_SUCCESS) {
    try {
      raise_status(status,
                   c10::str("running ", execution.name, " on neuron:", device,
                            ", asynchronously: the call that caused it is earlier in the program (NEURON_LAUNCH_BLOCKING=1 makes each "
                            "call raise its own errors)"));
    } catch (...) {
      fail(std::current_exception());
    }
  }
  // A record may have scheduled several, and schedule more: a window that runs as its calls.
  const bool last = under_way_.empty() || under_way_.front().first != sequence;
  if (last && !(working_ && sequence == current_)) complete(sequence);
  return true;
}

void TrainiumStream::complete(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  if (sequence > completed_.load(std::memory_order_relaxed)) completed_.store(sequence, std::memory_order_release);
  changed_.notify_all();
}

void TrainiumStream::end_thread() {
  {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void shutdown_trainium_streams() {
  std::vector<TrainiumStream*> all;
  {
    std::lock_guard lock(registry_mutex);
    all = registry();
  }
  for (auto* stream : all) stream->drain(stream->added());
  shutting_down.store(true);
  for (auto* stream : all) stream->end_thread();
}

}  // namespace neuron::trainium
