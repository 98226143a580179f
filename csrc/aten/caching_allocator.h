// The blocks of one device: cuts segments of raw memory into tensors' storages and keeps what is freed for the next tensor.
//
// Note [Blocks]
// A segment comes from Memory and is cut into blocks. A block belongs to one stream. When it is freed it may be handed out again at
// once, to the same stream: work that used it comes before work that will. Use on another stream has to be told with
// record_stream(); the block then stays out of reach ("pending") until those streams have passed the point at which it was freed.
//
// Free blocks lie in bins, one per size class (size_class.h), of their stream's small (requests below 1 MiB) or large pool. A request
// takes the first block of its bin (Note [Lowest address first]) without cutting it, or cuts one from the next larger bin that has any. A
// freed block merges with its free neighbours at once, so what is free depends on what is live and on nothing before.
//
// Note [Statistics]
// As in CUDA's allocator: reserved >= active >= allocated, where `active` still counts pending blocks. Once the streams are idle,
// pending blocks are collected before the statistics are read, so that active == allocated.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc/aten/allocator_history.h"
#include "csrc/aten/block_heap.h"
#include "csrc/runtime/memory.h"
#include "csrc/runtime/size_class.h"
#include "csrc/runtime/stream.h"

namespace neuron {

class DeviceCache;
struct BlockPool;

/// A stream other than the owner that used a block, and how far it must get before the block is free.
struct StreamUse {
  Stream* stream;
  uint64_t sequence;
};

struct Block {
  enum State : uint8_t { free, allocated, pending };

  char* data;        ///< device address
  size_t size;       ///< bytes of the block
  size_t requested;  ///< bytes that were asked for
  DeviceCache* cache;
  BlockPool* pool;
  BlockLinks links;       ///< with others of its bin
  Block* left = nullptr;  ///< neighbours in the segment
  Block* right = nullptr;
  State state = free;
  uint8_t bin = 0;
  Capture* capture = nullptr;  ///< the graph whose steps use it: freeing goes there
  uint64_t made_by = 0;        ///< the call of an open window that made it (csrc/aten/window.h); 0 once it is freed
  std::unique_ptr<std::vector<StreamUse>> uses;
  std::shared_ptr<c10::GatheredContext> context;  ///< who allocated it, when history is recorded

  bool split() const { return left || right; }
};

/// Free blocks of one stream, small or large.
struct BlockPool {
  Stream* stream;
  bool large;
  std::array<BlockHeap, kSizeClasses> bins;
  std::array<uint64_t, (kSizeClasses + 63) / 64> filled{};  ///< a bit per bin that has blocks

  void push(Block* block);
  void remove(Block* block);
  /// First bin from `bin` on that has blocks; kSizeClasses when there is none.
  int next_filled(int bin) const;
};

/// Thread safe.
class DeviceCache {
 public:
  struct Limits {
    int64_t max_split;               ///< blocks of this size and above are never cut, nor used for smaller requests
    int64_t max_non_split_rounding;  ///< bytes by which such a block may exceed the request it serves
  };

  /// `streams` gives all streams of the device: what is given back to the machine must not be in use by any. `relieve` is called when
  /// memory is short, to make other holders of the device's memory (or of the `host`'s, when that is full) give back what they do not need.
  DeviceCache(int device, Memory& memory, Limits limits, std::function<std::vector<Stream*>()> streams,
              std::function<void(bool host)> relieve);

  /// A block of at least `bytes` (> 0) for work on `stream`. Throws OutOfMemory.
  Block* allocate(Stream* stream, size_t bytes);
  void free(Block* block) noexcept;
  /// Keeps the block, when it is freed, until `stream` has finished what is in its queue then.
  void record_stream(Block* block, Stream* stream);

  /// Whether each block is still the one that `made_by` says, and not freed since.
  void still_made_by(const std::vector<std::pair<const Block*, uint64_t>>& blocks, std::vector<bool>& answers);

  /// Waits for the device's streams and gives all unused segments back.
  void empty_cache();
  /// Gives back the unused segments of idle streams, without waiting.
  void release_unused();

  /// Limits the segments to a part (0 to 1) of the device's memory.
  void set_fraction(double fraction);
  double fraction();

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_peak();
  void reset_accumulated();
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot();

  /// Whether `bytes` more could be asked for without raising the peak of what was.
  bool is_below_peak(size_t bytes);

  /// Bytes in live blocks, and in segments. Cheap.
  std::pair<int64_t, int64_t> usage();

  /// See History.
  void record(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context, size_t entries, RecordContext when, bool clear);
  std::vector<TraceEntry> recorded();

  Memory& memory() { return memory_; }
  /// Held while the process forks, so that a child finds it free.
  std::mutex& mutex() { return mutex_; }

  const int device;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct StreamPools {
    BlockPool small, large;
  };
  /// Like c10's Stat, in fewer instructions; see report().
  struct Counter {
    int64_t current = 0, peak = 0, total = 0, base_total = 0, base_freed = 0;
    void increase(int64_t amount) {
      current += amount;
      total += amount;
      if (current > peak) peak = current;
    }
    void decrease(int64_t amount) { current -= amount; }
    c10::CachingAllocator::Stat report() const;
  };
  struct Counters {  // all, small, large
    std::array<Counter, 3> each;
    void increase(bool large, int64_t amount) {
      each[0].increase(amount);
      each[1 + large].increase(amount);
    }
    void decrease(bool large, int64_t amount) {
      each[0].decrease(amount);
      each[1 + large].decrease(amount);
    }
    c10::CachingAllocator::StatArray report() const;
  };

  // All of these need mutex_.
  StreamPools& pools_of(Stream* stream);
  Block* find(BlockPool& pool, int bin, size_t size);
  bool usable(const Block& block, size_t size) const;
  Block* take(Block* block, size_t size);
  void cut(Block* block, size_t size);
  void put(Block* block);
  Block* merge(Block* block);
  void collect(Block* block);
  void collect_pending(bool all);
  Block* new_segment(BlockPool& pool, size_t bytes);
  bool release_idle(std::vector<Stream*>* busy);
  Block* new_block();
  void recycle(Block* block);
  void count_free(const Block& block, int sign);
  template <class F>
  void for_each_counter(F&& visit);

  // These let go of the lock while they wait.
  Block* find_or_grow(Lock& lock, BlockPool& pool, int bin, size_t size);
  void release_cached(Lock& lock, bool host_full);
  void drain_streams(Lock& lock, bool host_full);

  Memory& memory_;
  const Limits limits_;
  const std::function<std::vector<Stream*>()> streams_;
  const std::function<void(bool host)> relieve_;

  std::mutex mutex_;
  Stream* last_stream_ = nullptr;
  StreamPools* last_pools_ = nullptr;
  std::unordered_map<Stream*, std::unique_ptr<StreamPools>> pools_;
  std::unordered_set<Block*> segments_;  // the first block of each
  std::deque<Block*> pending_;
  Block* spare_ = nullptr;  // unused Block objects, linked by links.next
  std::vector<std::unique_ptr<Block[]>> slabs_;
  double fraction_ = 1.0;
  int64_t budget_;  // most bytes in segments

  Counters allocation_, segment_, active_, inactive_split_;
  Counters allocated_bytes_, reserved_bytes_, active_bytes_, inactive_split_bytes_, requested_bytes_;
  Counter oversize_allocations_, oversize_segments_;
  int64_t retries_ = 0, ooms_ = 0, syncs_ = 0, segments_made_ = 0, segments_released_ = 0;
  History history_;
};

}  // namespace neuron
