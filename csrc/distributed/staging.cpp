#include "csrc/distributed/staging.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "csrc/distributed/shared_block.h"
#include "csrc/runtime/target.h"

namespace neuron::distributed {
namespace {

constexpr size_t kSmallest = size_t{4} << 10;  ///< places are powers of two from here on: pages that nobody touches cost nothing
constexpr size_t kBlock = size_t{2} << 20;     ///< smaller places share a block
constexpr size_t kKept = size_t{1} << 30;      ///< free places of a block of their own, in bytes, beyond which blocks are given back

class Places {
 public:
  static Places& get() {
    static auto* const places = new Places;  // leaked: tensors may outlive static destructors
    return *places;
  }

  char* take(size_t bytes) {
    const size_t size = size_of(bytes);
    std::lock_guard lock(mutex_);
    auto& free = free_[size];
    if (free.empty()) add_block(size);
    char* place = free.back();
    free.pop_back();
    if (size >= kBlock) free_bytes_ -= size;
    return place;
  }

  void put(char* place, size_t bytes) {
    const size_t size = size_of(bytes);
    std::lock_guard lock(mutex_);
    if (size >= kBlock && free_bytes_ + size > kKept) {
      segments_released.fetch_add(1, std::memory_order_seq_cst);
      blocks_.erase(place);
      return;
    }
    free_[size].push_back(place);
    if (size >= kBlock) free_bytes_ += size;
  }

  SharedRange range(const char* address) {
    std::lock_guard lock(mutex_);
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return {};
    const auto& [start, block] = *std::prev(after);
    const auto offset = static_cast<size_t>(address - start);
    return offset < block.bytes() ? SharedRange{block.fd(), offset} : SharedRange{};
  }

 private:
  static size_t size_of(size_t bytes) { return std::bit_ceil(std::max(bytes, kSmallest)); }

  void add_block(size_t size) {
    SharedBlock block = SharedBlock::create("neuron-staging", std::max(size, kBlock));
    char* const start = block.data();
    const size_t bytes = block.bytes();
    blocks_.emplace(start, std::move(block));
    for (size_t at = 0; at < bytes; at += size) free_[size].push_back(start + at);
    if (size >= kBlock) free_bytes_ += size;
  }

  std::mutex mutex_;
  std::map<const char*, SharedBlock> blocks_;
  std::map<size_t, std::vector<char*>> free_;
  size_t free_bytes_ = 0;
};

}  // namespace

bool is_staged(int device) { return dynamic_cast<SharedMemory*>(&target().memory(device)) == nullptr; }

char* take_place(size_t bytes) { return Places::get().take(bytes); }
void give_back_place(char* place, size_t bytes) noexcept { Places::get().put(place, bytes); }
SharedRange place_range(const void* address) { return Places::get().range(static_cast<const char*>(address)); }

void fetch(const std::vector<StagedCopy>& copies) {
  for (const auto& copy : copies) target().memory(copy.device).read(copy.host_memory, copy.device_memory, copy.bytes);
}

void deliver(const std::vector<StagedCopy>& copies) {
  for (const auto& copy : copies) target().memory(copy.device).write(copy.device_memory, copy.host_memory, copy.bytes);
}

size_t bytes_of(const std::vector<StagedCopy>& copies) {
  size_t bytes = 0;
  for (const auto& copy : copies) bytes += copy.bytes;
  return bytes;
}

}  // namespace neuron::distributed
