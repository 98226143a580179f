// Something outside the streams that a stream may wait for: a collective with other processes, kernels that Python replays.
//
// Note [Blocked streams]
// A stream that meets a completion which is not done is blocked: its consumer leaves the record where it is and lets go of the
// compute slot, since the other process may need work of this one that only the slot's holder can run. What the completion itself
// still needs of our streams is run first, as for a wait on another stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace neuron {

class Stream;

/// A point of a stream.
using StreamPoint = std::pair<Stream*, uint64_t>;

class Completion {
 public:
  virtual ~Completion() = default;

  bool done() const { return done_.load(std::memory_order_acquire); }

  /// What it failed with; null while it is not done, and when all is well.
  std::exception_ptr error() const { return done() ? error_ : nullptr; }

  /// Its own work on the stream, as far as it goes now: called, with the compute slot, by a consumer that has met it at the stream's head,
  /// as often as one does. Does not throw.
  virtual void proceed() {}

  /// Whether a consumer of the stream would get on with it.
  virtual bool ready() const { return done(); }

  /// Points that must be reached before it can become done, older ones first.
  virtual std::vector<StreamPoint> needs() = 0;

  /// Lends it the calling thread until it is done or `stop()`, which is asked at least every few milliseconds. Never holds the compute
  /// slot.
  virtual void help(const std::function<bool()>& stop) = 0;

  /// Wakes consumers of blocked streams; set by the target.
  static void (*on_done)();

 protected:
  void finish(std::exception_ptr error) {
    error_ = std::move(error);
    done_.store(true, std::memory_order_seq_cst);
    if (on_done) on_done();
  }

 private:
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
};

/// An ability that a target's Stream may have, reached by dynamic_cast.
class Awaiting {
 public:
  /// Later work of this stream starts only after `completion` is done; its error, if any, becomes the stream's: see Note [Errors].
  virtual void wait_for(std::shared_ptr<Completion> completion) = 0;

  /// The same as the one record of the stream's open window, which closes.
  virtual void wait_for_window(std::shared_ptr<Completion> completion) = 0;

 protected:
  ~Awaiting() = default;
};

}  // namespace neuron
