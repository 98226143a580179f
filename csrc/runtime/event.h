// A point in a stream.
#pragma once

#include <cstdint>

#include "csrc/runtime/stream.h"

namespace neuron {

/// Records, waits and times like a CUDA event. A fresh event counts as reached. Not thread safe, like CUDA's.
class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  void record(Stream& stream) {
    if (timing_) time_ = std::make_shared<std::atomic<int64_t>>(0);
    stream_ = &stream;
    sequence_ = stream.mark(time_);
  }
  void block(Stream& stream) const {
    if (stream_) stream.wait_for(*stream_, sequence_);
  }
  bool query() const { return !stream_ || stream_->reached(sequence_) || (stream_->query(), stream_->reached(sequence_)); }
  void synchronize() const {
    if (!stream_) return;
    stream_->drain(sequence_);
    stream_->raise_pending();
  }

  bool timing() const { return timing_; }
  bool recorded() const { return stream_ != nullptr; }
  /// Moment at which the event was reached, ns; 0 when it was not.
  int64_t time_ns() const { return time_ ? time_->load(std::memory_order_acquire) : 0; }

 private:
  bool timing_;
  Stream* stream_ = nullptr;
  uint64_t sequence_ = 0;
  TimeCell time_;
};

}  // namespace neuron
