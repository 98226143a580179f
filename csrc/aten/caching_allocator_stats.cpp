// What DeviceCache tells about itself.
#include <algorithm>

#include "csrc/aten/caching_allocator.h"

namespace neuron {

using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;

c10::CachingAllocator::Stat DeviceCache::Counter::report() const {
  c10::CachingAllocator::Stat stat;
  stat.current = current;
  stat.peak = peak;
  stat.allocated = total - base_total;
  stat.freed = total - current - base_freed;
  return stat;
}

c10::CachingAllocator::StatArray DeviceCache::Counters::report() const { return {each[0].report(), each[1].report(), each[2].report()}; }

DeviceStats DeviceCache::stats() {
  Lock lock(mutex_);
  collect_pending(true);
  DeviceStats result;
  result.allocation = allocation_.report();
  result.segment = segment_.report();
  result.active = active_.report();
  result.inactive_split = inactive_split_.report();
  result.allocated_bytes = allocated_bytes_.report();
  result.reserved_bytes = reserved_bytes_.report();
  result.active_bytes = active_bytes_.report();
  result.inactive_split_bytes = inactive_split_bytes_.report();
  result.requested_bytes = requested_bytes_.report();
  result.num_alloc_retries = retries_;
  result.num_ooms = ooms_;
  result.oversize_allocations = oversize_allocations_.report();
  result.oversize_segments = oversize_segments_.report();
  result.num_sync_all_streams = syncs_;
  result.num_device_alloc = segments_made_;
  result.num_device_free = segments_released_;
  result.max_split_size = limits_.max_split == INT64_MAX ? -1 : limits_.max_split;
  return result;
}

template <class F>
void DeviceCache::for_each_counter(F&& visit) {
  for (Counters* counters : {&allocation_, &segment_, &active_, &inactive_split_, &allocated_bytes_, &reserved_bytes_, &active_bytes_,
                             &inactive_split_bytes_, &requested_bytes_})
    for (Counter& counter : counters->each) visit(counter);
  visit(oversize_allocations_);
  visit(oversize_segments_);
}

bool DeviceCache::is_below_peak(size_t bytes) {
  Lock lock(mutex_);
  const Counter& requested = requested_bytes_.each[0];
  return requested.current + static_cast<int64_t>(bytes) <= requested.peak;
}

void DeviceCache::reset_peak() {
  Lock lock(mutex_);
  collect_pending(true);
  for_each_counter([](Counter& counter) { counter.peak = counter.current; });
}

void DeviceCache::reset_accumulated() {
  Lock lock(mutex_);
  for_each_counter([](Counter& counter) {
    counter.base_total = counter.total;
    counter.base_freed = counter.total - counter.current;
  });
  retries_ = ooms_ = syncs_ = segments_made_ = segments_released_ = 0;
}

std::pair<int64_t, int64_t> DeviceCache::usage() {
  Lock lock(mutex_);
  return {allocated_bytes_.each[0].current, reserved_bytes_.each[0].current};
}

void DeviceCache::record(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context, size_t entries, RecordContext when,
                         bool clear) {
  Lock lock(mutex_);
  history_.configure(enabled, context, entries, when, clear);
}

std::vector<TraceEntry> DeviceCache::recorded() {
  Lock lock(mutex_);
  return history_.entries();
}

std::vector<SegmentInfo> DeviceCache::snapshot() {
  Lock lock(mutex_);
  std::vector<SegmentInfo> result;
  for (const Block* first : segments_) {
    SegmentInfo segment;
    segment.device = static_cast<c10::DeviceIndex>(device);
    segment.address = reinterpret_cast<size_t>(first->data);
    segment.stream = first->pool->stream;
    segment.is_large = first->pool->large;
    for (const Block* block = first; block; block = block->right) {
      BlockInfo info;
      info.size = block->size;
      info.allocated = block->state == Block::allocated;
      info.active = block->state != Block::free;
      info.requested_size = info.active ? block->requested : 0;
      info.context_when_allocated = block->context;
      segment.total_size += info.size;
      if (info.allocated) segment.allocated_size += info.size;
      if (info.active) segment.active_size += info.size;
      segment.requested_size += info.requested_size;
      segment.blocks.push_back(std::move(info));
    }
    result.push_back(std::move(segment));
  }
  std::sort(result.begin(), result.end(), [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return result;
}

}  // namespace neuron
