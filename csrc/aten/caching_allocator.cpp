#include "csrc/aten/caching_allocator.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace neuron {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kSmallLimit = kMiB;       // requests below go to the small pool
constexpr size_t kClassLimit = 16 * kMiB;  // requests below are rounded up to a size class
constexpr size_t kPage = 4096;
constexpr size_t kLargest = size_t{1} << 41;  // more than any device has; bins end not far above it

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// ---- BlockPool ----------------------------------------------------------------------------------------------------------

void BlockPool::push(Block* block) {
  const int bin = size_class_down(block->size);
  block->bin = static_cast<uint8_t>(bin);
  bins[bin].add(block);
  filled[bin / 64] |= uint64_t{1} << (bin % 64);
}

void BlockPool::remove(Block* block) {
  const int bin = block->bin;
  bins[bin].remove(block);
  if (bins[bin].empty()) filled[bin / 64] &= ~(uint64_t{1} << (bin % 64));
}

int BlockPool::next_filled(int bin) const {
  if (bin >= kSizeClasses) return kSizeClasses;
  size_t word = bin / 64;
  uint64_t bits = filled[word] & (~uint64_t{0} << (bin % 64));
  while (!bits) {
    if (++word == filled.size()) return kSizeClasses;
    bits = filled[word];
  }
  return static_cast<int>(word * 64) + std::countr_zero(bits);
}

// ---- The hot path -------------------------------------------------------------------------------------------------------

DeviceCache::DeviceCache(int device, Memory& memory, Limits limits, std::function<std::vector<Stream*>()> streams,
                         std::function<void(bool host)> relieve)
    : device(device), memory_(memory), limits_(limits), streams_(std::move(streams)), relieve_(std::move(relieve)) {
  set_fraction(1.0);
}

Block* DeviceCache::allocate(Stream* stream, size_t bytes) {
  std::shared_ptr<c10::GatheredContext> context;
  if (history_.enabled()) [[unlikely]]
    context = history_.gather(RecordContext::STATE);
  const bool large = bytes >= kSmallLimit;
  const bool classed = bytes < kClassLimit;
  const size_t size = classed ? size_of_class(size_class_up(bytes)) : round_up(bytes, kPage);
  const int bin = classed ? size_class_up(bytes) : size_class_down(size);

  Lock lock(mutex_);
  // Also what came from a negative or absurd number, before it picks a bin.
  if (bytes > kLargest) [[unlikely]] {
    throw OutOfMemory{"device", static_cast<int64_t>(std::min(bytes, static_cast<size_t>(INT64_MAX))), budget_, budget_,
                      "no NeuronCore has that much"};
  }
  if (!pending_.empty()) collect_pending(false);
  StreamPools& pools = pools_of(stream);
  BlockPool& pool = large ? pools.large : pools.small;
  Block* block = pool.bins[bin].first();
  if (block && block->size >= size && usable(*block, size)) [[likely]] {
    block = take(block, size);
  } else {
    block = find_or_grow(lock, pool, bin, size);
  }
  block->state = Block::allocated;
  block->made_by = 0;
  block->requested = bytes;
  const auto held = static_cast<int64_t>(block->size);
  allocation_.increase(large, 1);
  active_.increase(large, 1);
  allocated_bytes_.increase(large, held);
  active_bytes_.increase(large, held);
  requested_bytes_.increase(large, static_cast<int64_t>(bytes));
  if (held >= limits_.max_split) [[unlikely]]
    oversize_allocations_.increase(1);
  if (history_.enabled()) [[unlikely]] {
    block->context = context;
    history_.add(TraceEntry::ALLOC, device, block->data, bytes, stream, std::move(context));
  }
  return block;
}

void DeviceCache::free(Block* block) noexcept {
  std::shared_ptr<c10::GatheredContext> context;
  if (history_.enabled()) [[unlikely]]
    context = history_.gather(RecordContext::ALL);
  Lock lock(mutex_);
  const bool large = block->pool->large;
  block->made_by = 0;
  allocation_.decrease(large, 1);
  allocated_bytes_.decrease(large, static_cast<int64_t>(block->size));
  requested_bytes_.decrease(large, static_cast<int64_t>(block->requested));
  if (static_cast<int64_t>(block->size) >= limits_.max_split) [[unlikely]]
    oversize_allocations_.decrease(1);
  if (history_.enabled()) [[unlikely]] {
    history_.add(TraceEntry::FREE_REQUESTED, device, block->data, block->requested, block->pool->stream, std::move(context));
  }
  if (block->uses) [[unlikely]] {
    for (StreamUse& use : *block->uses) use.sequence = use.stream->enqueued();
    block->state = Block::pending;
    pending_.push_back(block);
    collect_pending(false);
  } else {
    collect(block);
  }
}

/// The block is nobody's any more.
void DeviceCache::collect(Block* block) {
  const bool large = block->pool->large;
  active_.decrease(large, 1);
  active_bytes_.decrease(large, static_cast<int64_t>(block->size));
  if (history_.enabled()) [[unlikely]] {
    history_.add(TraceEntry::FREE_COMPLETED, device, block->data, block->requested, block->pool->stream, nullptr);
  }
  block->state = Block::free;
  if (block->context) [[unlikely]]
    block->context.reset();
  put(merge(block));
}

DeviceCache::StreamPools& DeviceCache::pools_of(Stream* stream) {
  if (stream == last_stream_) return *last_pools_;
  auto& pools = pools_[stream];
  if (!pools) {
    pools = std::make_unique<StreamPools>();
    pools->small.stream = pools->large.stream = stream;
    pools->small.large = false;
    pools->large.large = true;
  }
  last_stream_ = stream;
  last_pools_ = pools.get();
  return *pools;
}

// ---- Free blocks --------------------------------------------------------------------------------------------------------

void DeviceCache::count_free(const Block& block, int sign) {
  if (!block.split()) return;  // a whole segment can be given back; only parts are stuck
  if (sign > 0) {
    inactive_split_.increase(block.pool->large, 1);
    inactive_split_bytes_.increase(block.pool->large, static_cast<int64_t>(block.size));
  } else {
    inactive_split_.decrease(block.pool->large, 1);
    inactive_split_bytes_.decrease(block.pool->large, static_cast<int64_t>(block.size));
  }
}

void DeviceCache::put(Block* block) {
  count_free(*block, +1);
  block->pool->push(block);
}

/// See DeviceCache::Limits.
bool DeviceCache::usable(const Block& block, size_t size) const {
  const auto have = static_cast<int64_t>(block.size), want = static_cast<int64_t>(size);
  if (want < limits_.max_split) return have < limits_.max_split;
  return have - want < limits_.max_non_split_rounding;
}

/// The best of the free blocks that hold `size`, still in its bin; null when there is none.
Block* DeviceCache::find(BlockPool& pool, int bin, size_t size) {
  for (bin = pool.next_filled(bin); bin < kSizeClasses; bin = pool.next_filled(bin + 1)) {
    // Blocks of the small pool are much alike, and there may be many. A large one that fits must be found if there is one.
    Block* first = pool.bins[bin].first();
    if (!pool.large && first->size >= size && usable(*first, size)) return first;
    Block* best = nullptr;
    for (Block* block : pool.bins[bin].all()) {
      if (block->size < size || !usable(*block, size)) continue;
      if (!best || std::pair(block->size, block->data) < std::pair(best->size, best->data)) best = block;
    }
    if (best) return best;
  }
  return nullptr;
}

/// Takes a free block out of its bin and cuts off what is not needed.
Block* DeviceCache::take(Block* block, size_t size) {
  count_free(*block, -1);
  block->pool->remove(block);
  const size_t rest = block->size - size;
  const bool worth_it = block->pool->large ? rest >= kSmallLimit && static_cast<int64_t>(block->size) < limits_.max_split
                                           : rest >= kSmallestBlock && rest > block->size / 8;
  if (worth_it) cut(block, size);
  return block;
}

/// Makes the block `size` bytes long and the rest a free block of its own.
void DeviceCache::cut(Block* block, size_t size) {
  Block* rest = new_block();
  rest->data = block->data + size;
  rest->size = block->size - size;
  rest->pool = block->pool;
  rest->left = block;
  rest->right = block->right;
  if (rest->right) rest->right->left = rest;
  block->right = rest;
  block->size = size;
  put(rest);
}

/// Joins a block that is in no bin with its free neighbours. Returns the leftmost Block, which stands for all.
Block* DeviceCache::merge(Block* block) {
  const auto absorb = [this](Block* first, Block* second) {
    first->size += second->size;
    first->right = second->right;
    if (first->right) first->right->left = first;
    recycle(second);
  };
  if (Block* right = block->right; right && right->state == Block::free) {
    count_free(*right, -1);
    right->pool->remove(right);
    absorb(block, right);
  }
  if (Block* left = block->left; left && left->state == Block::free) {
    count_free(*left, -1);
    left->pool->remove(left);
    absorb(left, block);
    block = left;
  }
  return block;
}

/// Looks at blocks that were freed while other streams used them: all, or the oldest while they can be collected.
void DeviceCache::collect_pending(bool all) {
  const auto done = [](const Block* block) {
    return std::all_of(block->uses->begin(), block->uses->end(), [](const StreamUse& use) { return use.stream->reached(use.sequence); });
  };
  for (size_t i = 0; i < pending_.size();) {
    Block* block = pending_[i];
    if (done(block)) {
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      block->uses.reset();
      collect(block);
    } else if (all) {
      ++i;
    } else {
      return;
    }
  }
}

Block* DeviceCache::new_block() {
  if (!spare_) {
    constexpr int count = 64;
    slabs_.push_back(std::make_unique<Block[]>(count));
    for (int i = 0; i < count; ++i) recycle(&slabs_.back()[i]);
  }
  Block* block = spare_;
  spare_ = block->links.next;
  *block = Block();
  block->cache = this;
  return block;
}

void DeviceCache::recycle(Block* block) {
  block->links.next = spare_;
  spare_ = block;
}

void DeviceCache::still_made_by(const std::vector<std::pair<const Block*, uint64_t>>& blocks, std::vector<bool>& answers) {
  Lock lock(mutex_);
  for (const auto& [block, made_by] : blocks) answers.push_back(block->made_by == made_by);
}

void DeviceCache::record_stream(Block* block, Stream* stream) {
  Lock lock(mutex_);
  if (stream == block->pool->stream) return;
  if (!block->uses) block->uses = std::make_unique<std::vector<StreamUse>>();
  for (const StreamUse& use : *block->uses)
    if (use.stream == stream) return;
  block->uses->push_back({stream, 0});
}

}  // namespace neuron
