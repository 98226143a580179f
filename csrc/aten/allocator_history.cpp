#include "csrc/aten/allocator_history.h"

namespace neuron {

void History::configure(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context, size_t entries, RecordContext when,
                        bool clear) {
  enabled_ = enabled;
  context_ = enabled ? context : nullptr;
  when_ = enabled ? when : RecordContext::NEVER;
  if (!enabled && !clear) return;  // what was recorded can still be read
  if (clear || entries < ring_.size()) {
    ring_.clear();
    next_ = 0;
  } else if (entries != most_) {
    ring_ = this->entries();  // oldest first again, as the ring is going to grow
    next_ = 0;
  }
  most_ = entries;
}

std::shared_ptr<c10::GatheredContext> History::gather(RecordContext level) const {
  const auto context = context_.load(std::memory_order_relaxed);
  return context && when_.load(std::memory_order_relaxed) >= level ? context() : nullptr;
}

void History::add(TraceEntry::Action action, int device, const void* address, size_t size, void* stream,
                  std::shared_ptr<c10::GatheredContext> context) {
  if (!enabled() || most_ == 0) return;
  TraceEntry entry(action, static_cast<c10::DeviceIndex>(device), reinterpret_cast<size_t>(address), size, stream, c10::MempoolId_t{0, 0},
                   c10::getApproximateTime(), std::move(context));
  if (ring_.size() < most_) {
    ring_.push_back(std::move(entry));
  } else {
    ring_[next_] = std::move(entry);
    next_ = (next_ + 1) % most_;
  }
}

std::vector<TraceEntry> History::entries() const {
  std::vector<TraceEntry> result(ring_.begin() + next_, ring_.end());
  result.insert(result.end(), ring_.begin(), ring_.begin() + next_);
  return result;
}

}  // namespace neuron
