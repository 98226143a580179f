// DeviceCache's dealings with raw memory: growing, giving back, and what to try before it says that memory is full.
#include <algorithm>
#include <cstring>

#include "csrc/aten/caching_allocator.h"

namespace neuron {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// Small requests share 2 MiB, those below 10 MiB share 20 MiB.
size_t segment_size(size_t block, bool large) {
  if (!large) return 2 * kMiB;
  if (block < 10 * kMiB) return 20 * kMiB;
  return block < 16 * kMiB ? (block + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB) : block;
}

}  // namespace

Block* DeviceCache::find_or_grow(Lock& lock, BlockPool& pool, int bin, size_t size) {
  const auto reuse = [&]() -> Block* {
    Block* found = find(pool, bin, size);
    return found ? take(found, size) : nullptr;
  };
  const auto grow = [&](size_t bytes) { return take(new_segment(pool, bytes), size); };

  if (Block* block = reuse()) return block;
  collect_pending(true);
  if (Block* block = reuse()) return block;
  const size_t segment = segment_size(size, pool.large);
  bool host_full = false;
  try {
    return grow(segment);
  } catch (const OutOfMemory& full) {
    ++retries_;
    host_full = std::strcmp(full.which, "host") == 0;
  }
  // Memory is short. First what costs nothing, then what makes the program wait.
  if (release_idle(nullptr)) {
    try {
      return grow(segment);
    } catch (const OutOfMemory&) {
    }
  }
  release_cached(lock, host_full);
  if (Block* block = reuse()) return block;  // pending blocks were collected meanwhile
  try {
    return grow(segment);
  } catch (const OutOfMemory&) {
  }
  try {
    return grow((size + 4095) / 4096 * 4096);  // not even room to share
  } catch (const OutOfMemory& full) {
    ++ooms_;
    history_.add(TraceEntry::OOM, device, reinterpret_cast<void*>(full.free), size, pool.stream, nullptr);
    throw;
  }
}

/// A free block that is a whole new segment, in its bin.
Block* DeviceCache::new_segment(BlockPool& pool, size_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  const int64_t reserved = reserved_bytes_.each[0].current;
  if (size > budget_ - reserved) {
    throw OutOfMemory{"device", size, std::max<int64_t>(budget_ - reserved, 0), budget_,
                      fraction_ < 1.0 ? "set_per_process_memory_fraction() limits this process" : "the memory of the NeuronCore is full"};
  }
  void* address = memory_.allocate(bytes);
  Block* block = new_block();
  block->data = static_cast<char*>(address);
  block->size = bytes;
  block->pool = &pool;
  segments_.insert(block);
  ++segments_made_;
  segment_.increase(pool.large, 1);
  reserved_bytes_.increase(pool.large, size);
  if (size >= limits_.max_split) oversize_segments_.increase(1);
  history_.add(TraceEntry::SEGMENT_ALLOC, device, address, bytes, pool.stream, nullptr);
  put(block);
  return block;
}

/// Gives back the unused segments whose stream has nothing queued: what is queued may still touch blocks that the host has freed. Returns
/// whether there were any; adds the streams of the others to `busy`.
bool DeviceCache::release_idle(std::vector<Stream*>* busy) {
  bool released = false;
  for (auto it = segments_.begin(); it != segments_.end();) {
    Block* block = *it;
    if (block->state != Block::free || block->split()) {
      ++it;
      continue;
    }
    Stream* stream = block->pool->stream;
    if (!stream->reached(stream->enqueued())) {
      if (busy) busy->push_back(stream);
      ++it;
      continue;
    }
    const bool large = block->pool->large;
    const auto size = static_cast<int64_t>(block->size);
    block->pool->remove(block);
    history_.add(TraceEntry::SEGMENT_FREE, device, block->data, block->size, stream, nullptr);
    memory_.release(block->data, block->size);
    ++segments_released_;
    segment_.decrease(large, 1);
    reserved_bytes_.decrease(large, size);
    if (size >= limits_.max_split) oversize_segments_.decrease(1);
    recycle(block);
    it = segments_.erase(it);
    released = true;
  }
  return released;
}

/// Waits for the streams and gives back all unused segments. Other threads may go on meanwhile, and keep a stream busy: their segments stay
/// after a few attempts.
void DeviceCache::release_cached(Lock& lock, bool host_full) {
  drain_streams(lock, host_full);
  collect_pending(true);
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::vector<Stream*> busy;
    release_idle(&busy);
    if (busy.empty()) return;
    lock.unlock();
    for (Stream* stream : busy) stream->drain();
    lock.lock();
    collect_pending(true);
  }
}

void DeviceCache::drain_streams(Lock& lock, bool host_full) {
  ++syncs_;
  lock.unlock();  // work that runs meanwhile may free blocks
  for (Stream* stream : streams_()) stream->drain();
  relieve_(host_full);
  lock.lock();
}

void DeviceCache::empty_cache() {
  Lock lock(mutex_);
  release_cached(lock, false);
}

void DeviceCache::release_unused() {
  Lock lock(mutex_);
  collect_pending(true);
  release_idle(nullptr);
}

void DeviceCache::set_fraction(double fraction) {
  int64_t free = 0, total = 0;
  memory_.info(&free, &total);
  std::lock_guard<std::mutex> lock(mutex_);
  fraction_ = fraction;
  budget_ = static_cast<int64_t>(static_cast<double>(total) * fraction);
}

double DeviceCache::fraction() {
  std::lock_guard<std::mutex> lock(mutex_);
  return fraction_;
}

}  // namespace neuron
