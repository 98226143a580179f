// What the allocator did, with stack traces, for PyTorch's memory visualiser. Off unless asked for.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <memory>
#include <vector>

namespace neuron {

using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;

/// The last events of one device. Guarded by the mutex of its DeviceCache, but for wants() and gather().
class History {
 public:
  /// Starts or, with enabled = false, stops. `context` takes a stack trace (may be null), `when` says of which events; the newest `entries`
  /// events are kept.
  void configure(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context, size_t entries, RecordContext when, bool clear);

  /// Cheap test for the hot path.
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  /// A stack trace if events of importance `level` get one. It may take the GIL: never call it with the mutex held.
  std::shared_ptr<c10::GatheredContext> gather(RecordContext level) const;

  void add(TraceEntry::Action action, int device, const void* address, size_t size, void* stream,
           std::shared_ptr<c10::GatheredContext> context);

  /// Oldest first.
  std::vector<TraceEntry> entries() const;

 private:
  std::atomic<bool> enabled_{false};
  std::atomic<c10::CachingDeviceAllocator::CreateContextFn> context_{nullptr};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  size_t most_ = 0;
  size_t next_ = 0;  // where the ring continues once it is full
  std::vector<TraceEntry> ring_;
};

}  // namespace neuron
