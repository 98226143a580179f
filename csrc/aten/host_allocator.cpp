// Pinned host memory: PyTorch's caching host allocator over plain page-aligned memory.
//
// On a chip, pinned memory is what the chip's copy engines can reach while the host goes on. The emulated device reaches any memory; what
// "pinned" means here is that a copy with non_blocking=True may run later, because the block cannot be reused before the stream has passed
// it. It is always host memory.
#include "csrc/aten/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "csrc/aten/guard.h"

namespace neuron {
namespace {

/// The ranges that are pinned now. Looked at by every copy, changed only when memory is taken from the system.
class PinnedRanges {
 public:
  void add(const void* begin, size_t bytes) {
    std::unique_lock lock(mutex_);
    end_of_[static_cast<const char*>(begin)] = static_cast<const char*>(begin) + bytes;
  }
  void remove(const void* begin) {
    std::unique_lock lock(mutex_);
    end_of_.erase(static_cast<const char*>(begin));
  }
  bool contains(const void* address) const {
    const char* const at = static_cast<const char*>(address);
    std::shared_lock lock(mutex_);
    auto it = end_of_.upper_bound(at);
    return it != end_of_.begin() && at < std::prev(it)->second;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<const char*, const char*> end_of_;
};

PinnedRanges& pinned_ranges() {
  static auto* const ranges = new PinnedRanges;
  return *ranges;
}

/// A point in a stream that a block waits for.
struct StreamPoint {
  Stream* stream;
  uint64_t sequence;
};

using HostBlock = at::HostBlock<c10::Stream>;

struct HostAllocatorImpl : at::CachingHostAllocatorImpl<c10::Stream, StreamPoint> {
 private:
  void allocate_host_memory(size_t size, void** data) override {
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK_WITH(OutOfMemoryError, mapped != MAP_FAILED, "The system refused ", size,
                     " bytes of host memory for a pinned tensor: ", std::strerror(errno),
                     ". Use less pinned memory, or free what is cached with torch.accelerator.memory.empty_host_cache().");
    pinned_ranges().add(mapped, size);
    *data = mapped;
  }

  void free_block(HostBlock* block) override {
    pinned_ranges().remove(block->ptr_);
    munmap(block->ptr_, block->size_);
  }

  void record_stream(std::optional<std::vector<StreamPoint>>& events, c10::Stream stream) override {
    Stream* const queue = stream_of(stream);
    events->push_back({queue, queue->enqueued()});
  }

  bool query_event(StreamPoint& point) override { return point.stream->reached(point.sequence) || point.stream->query(); }

  c10::Stream get_current_stream() const override { return to_c10(current_stream(current_device())); }
  bool stream_is_capturing(c10::Stream) const override { return false; }
};

void free_pinned(void* context);

struct HostAllocator final : at::CachingHostAllocatorInterface<HostAllocatorImpl, free_pinned> {
  void copy_data(void* destination, const void* source, std::size_t bytes) const override { default_copy_data(destination, source, bytes); }
};

HostAllocator& host_allocator() {
  static auto* const instance = new HostAllocator;  // never destroyed: tensors may outlive main()
  return *instance;
}

void free_pinned(void* context) { host_allocator().free(context); }

}  // namespace

bool is_pinned(const void* address) { return pinned_ranges().contains(address); }

REGISTER_HOST_ALLOCATOR(c10::kPrivateUse1, &host_allocator())

}  // namespace neuron
