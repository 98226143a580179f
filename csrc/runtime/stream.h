// An in-order queue of work on one device.
//
// Note [Stream order]
// Each record gets the next sequence number of its stream. `completed()` is the last one that has run, so "has this work
// finished" is one comparison, and an event is a pair (stream, sequence number). Streams are never destroyed: PyTorch hands
// them out from a pool, so a plain Stream* is always valid.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace neuron {

class Executable;
struct Block;

/// The moment an event was reached, in ns of the monotonic clock; 0 until then.
using TimeCell = std::shared_ptr<std::atomic<int64_t>>;

/// What a stream under capture was given: kept to be replayed, not run (csrc/aten/graph.h).
class Capture {
 public:
  struct Step {
    Executable* executable;  ///< null for a call
    std::function<void()> call;
    std::vector<uint64_t> words;
  };
  virtual ~Capture() = default;

  virtual void add(Step step) = 0;

  // Memory that the steps use stays theirs until the capture is reset, whatever becomes of the tensors. A block that was freed within
  // the capture may serve a later step of it.
  virtual Block* reuse(size_t bytes) = 0;
  virtual void hold(Block* block) = 0;
  virtual void freed(Block* block) = 0;
};

/// Launches that were made and are not in the queue yet; closed, they are one record of it (csrc/aten/window.h).
class Window {
 public:
  virtual ~Window() = default;
  /// Puts what it holds into the queue.
  virtual void close() = 0;
};

class Stream {
 public:
  Stream(int device, int64_t id, int priority) : device(device), id(id), priority(priority) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const int device;
  const int64_t id;
  const int priority;

  // ---- Adding work. Each call returns the sequence number of what it added, and may wait when the queue is full. ----

  /// One launch of `exe`. `words` (data addresses, then scalar payload, as the executable laid them out) are copied.
  virtual uint64_t launch(Executable& exe, const uint64_t* words, size_t count) = 0;
  /// The same for the open window itself, which closes.
  virtual uint64_t launch_window(Executable& exe, const uint64_t* words, size_t count) = 0;

  /// A host function in stream order. It must not touch Python. It may throw: see Note [Errors].
  virtual uint64_t call(std::function<void()> fn) = 0;

  /// Marks this point of the stream; `time`, when given, receives the moment it is reached.
  virtual uint64_t mark(TimeCell time) = 0;

  /// Later work of this stream starts only after `other` has reached `sequence`.
  virtual void wait_for(Stream& other, uint64_t sequence) = 0;

  /// While set, work is handed to the capture, and whatever would wait throws.
  void set_capture(Capture* capture) { capture_.store(capture, std::memory_order_release); }
  Capture* capture() const { return capture_.load(std::memory_order_acquire); }

  // Note [Windows]
  // While a window is open on the stream, enqueued() already counts the record that it will be, so that whoever waits for the stream to get
  // as far as it is now waits for the window too. Everything else that is added, waits or asks closes it first; other threads that add
  // meanwhile do so before or after it, never in the place that it was promised.
  virtual void open_window(Window* window) = 0;
  void forget_window() { window_.store(nullptr, std::memory_order_release); }
  void close_window() {
    if (Window* window = window_.load(std::memory_order_acquire)) [[unlikely]]
      window->close();
  }
  /// The stream's own Window object, once its owner has attached one; it lives as long as the stream.
  std::atomic<Window*> attached_window{nullptr};

  // ---- Looking. ----

  /// May count one too many while another thread closes the window; never too few.
  uint64_t enqueued() const {
    const bool open = window_.load(std::memory_order_acquire) != nullptr;  // first: a window's record is added before it is forgotten
    return queued() + open;
  }
  /// The number of the last record, that of a window which this closes included.
  uint64_t added() {
    close_window();
    return queued();
  }
  /// Without an open window.
  uint64_t queued() const { return enqueued_.load(std::memory_order_acquire); }
  uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  bool reached(uint64_t sequence) const { return completed() >= sequence; }

  /// True when all work has run. Also nudges work that lies idle, so that polling always ends.
  virtual bool query() = 0;

  // ---- Waiting. The GIL is released meanwhile (see HostWait). ----

  /// Blocks until `sequence` has run. Does not raise pending errors.
  virtual void drain(uint64_t sequence) = 0;
  void drain() { drain(added()); }

  /// Blocks until all work has run, then raises the pending error, if any.
  void synchronize() {
    drain();
    raise_pending();
  }

  // Note [Errors]
  // What a record throws is kept by its stream, the first one wins, and is raised once at the next synchronisation of that
  // stream (or of its device). Later records still run.
  bool has_pending() const { return has_pending_.load(std::memory_order_acquire); }
  virtual void raise_pending() = 0;

 protected:
  std::atomic<uint64_t> enqueued_{0};
  std::atomic<uint64_t> completed_{0};
  std::atomic<bool> has_pending_{false};
  std::atomic<Capture*> capture_{nullptr};
  std::atomic<Window*> window_{nullptr};
};

/// Called around each blocking wait; the Python module installs a pair that releases and takes the GIL.
struct HostWait {
  void* (*begin)() = nullptr;
  void (*end)(void*) = nullptr;
};
extern HostWait host_wait;

class HostWaitScope {
 public:
  HostWaitScope() : state_(host_wait.begin ? host_wait.begin() : nullptr) {}
  ~HostWaitScope() {
    if (host_wait.end) host_wait.end(state_);
  }
  HostWaitScope(const HostWaitScope&) = delete;
  HostWaitScope& operator=(const HostWaitScope&) = delete;

 private:
  void* state_;
};

}  // namespace neuron
