#include "csrc/aten/allocator.h"

#include <pthread.h>

#include <cstdio>
#include <cstring>

#include "csrc/aten/guard.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/target.h"

namespace neuron {

void (*NeuronAllocator::on_pressure)(int device) = nullptr;

namespace {

void delete_block(void* block) { NeuronAllocator::free_block(static_cast<Block*>(block)); }

c10::Device device_named(int index) { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

/// "1.50 GiB"
std::string readable(int64_t bytes) {
  const char* unit = "bytes";
  double amount = static_cast<double>(bytes);
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (amount < 1024) break;
    amount /= 1024;
    unit = next;
  }
  char text[64];
  std::snprintf(text, sizeof(text), *unit == 'b' ? "%.0f %s" : "%.2f %s", amount, unit);
  return text;
}

void report_usage(const Block* block, bool freed) {
  const auto [allocated, reserved] = block->cache->usage();
  const auto size = static_cast<int64_t>(block->size);
  c10::reportMemoryUsageToProfiler(block->data, freed ? -size : size, allocated, reserved, device_named(block->cache->device));
}

// A child of fork() has only the thread that forked: a mutex that another thread held then would stay locked in it for ever, and the child
// could not even free its copies of tensors.
template <class F>
void for_each_cache(F&& visit) {
  for (int device = 0; device < kMaxDevices; ++device)
    if (DeviceCache* cache = NeuronAllocator::get().cache_if_open(device)) visit(*cache);
}
[[maybe_unused]] const int fork_handlers = pthread_atfork([] { for_each_cache([](DeviceCache& cache) { cache.mutex().lock(); }); },
                                                          [] { for_each_cache([](DeviceCache& cache) { cache.mutex().unlock(); }); },
                                                          [] { for_each_cache([](DeviceCache& cache) { cache.mutex().unlock(); }); });

}  // namespace

NeuronAllocator& NeuronAllocator::get() {
  static auto* const instance = new NeuronAllocator;  // never destroyed: threads and tensors may outlive main()
  return *instance;
}

REGISTER_ALLOCATOR(c10::kPrivateUse1, &NeuronAllocator::get())

DeviceCache& NeuronAllocator::open(int device) {
  check_device(device);
  std::lock_guard<std::mutex> lock(opening_);
  if (DeviceCache* ready = cache_if_open(device)) return *ready;
  const Settings& s = settings();
  auto* cache = new DeviceCache(
      device, target().memory(device), {s.max_split_bytes, s.max_non_split_rounding_bytes}, [device] { return open_streams(device); },
      [this, device](bool host) {
        if (on_pressure) on_pressure(device);
        if (!host) return;
        // The host's memory is behind all devices: what the others only keep for later makes room as well.
        for (int other = 0; other < kMaxDevices; ++other)
          if (DeviceCache* idle = other == device ? nullptr : cache_if_open(other)) idle->empty_cache();
      });
  caches_[device].store(cache, std::memory_order_release);
  return *cache;
}

Block* NeuronAllocator::allocate_block(int device, Stream* stream, size_t bytes) {
  Capture* capture = stream->capture();
  if (capture) [[unlikely]] {
    if (Block* again = capture->reuse(bytes)) return again;
  }
  DeviceCache& from = cache(device);
  try {
    Block* block = from.allocate(stream, bytes);
    if (capture) [[unlikely]]
      capture->hold(block);
    if (c10::memoryProfilingEnabled()) [[unlikely]]
      report_usage(block, false);
    return block;
  } catch (const OutOfMemory& full) {
    raise_out_of_memory(from, bytes, full);
  }
}

void NeuronAllocator::free_block(Block* block) noexcept {
  if (block->capture) [[unlikely]]
    return block->capture->freed(block);
  if (c10::memoryProfilingEnabled()) [[unlikely]]
    report_usage(block, true);
  block->cache->free(block);
}

void NeuronAllocator::raise_out_of_memory(DeviceCache& cache, size_t bytes, const OutOfMemory& full) {
  const auto [allocated, reserved] = cache.usage();
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), allocated, reserved, device_named(cache.device));
  const bool host = std::strcmp(full.which, "host") == 0;
  const bool request = !host && bytes > static_cast<size_t>(target().device_info(cache.device).memory_bytes);
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "neuron:", cache.device, " is out of memory: ",
      host      ? "the host's memory is full"
      : request ? "the request alone is larger than the device"
                : "the device's memory is full",
      " (", request ? "no NeuronCore has that much" : full.detail, "). Tried to allocate ", readable(static_cast<int64_t>(bytes)), "; ",
      readable(full.free), " of ", readable(full.total), " can still be had. This process holds ", readable(allocated),
      " in tensors on the device and ", readable(reserved - allocated), " reserved but unallocated. ",
      host
          ? "An emulated device lives in host memory: use smaller tensors, end other processes, or move the limit with "
            "TORCH_NEURONX_HOST_MEMORY_LIMIT or TORCH_NEURONX_HOST_MEMORY_RESERVE."
          : "Use smaller tensors or batches, free what is not needed, or shard over more devices; if much is reserved but unallocated, try "
            "TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG=kMaxSplitSizeBytes=268435456 against fragmentation.");
}

c10::DataPtr NeuronAllocator::make_data_ptr(Block* block) {
  return {block->data, block, &delete_block, device_named(block->cache->device)};
}

c10::DataPtr NeuronAllocator::make_cpu_data_ptr(Block* block) {
  return {host_address(block->data), block, &delete_block, c10::Device(c10::kCPU)};
}

Block* NeuronAllocator::block_of(const c10::DataPtr& pointer) { return pointer.cast_context<Block>(&delete_block); }

Block* NeuronAllocator::release(c10::DataPtr&& pointer) {
  Block* block = block_of(pointer);
  if (block) {
    pointer.release_context();
    pointer.clear();
  }
  return block;
}

int NeuronAllocator::device_of(const void* address) {
  if (!target_is_open()) return -1;
  const int devices = target().device_count();
  for (int device = 0; device < devices; ++device)
    if (target().memory(device).contains(address)) return device;
  return -1;
}

c10::DataPtr NeuronAllocator::allocate(size_t bytes) {
  const int device = current_device();
  if (bytes == 0) return {nullptr, device_named(device)};
  return make_data_ptr(allocate_block(device, current_stream(device), bytes));
}

void NeuronAllocator::copy_data(void* destination, const void* source, size_t bytes) const {
  if (bytes == 0) return;
  for (const void* address : {static_cast<const void*>(destination), source}) {
    const int device = device_of(address);
    TORCH_CHECK(device >= 0, "Both sides of copy_data() must be memory of a neuron device.");
    for (Stream* stream : open_streams(device)) stream->synchronize();
  }
  target().memory(device_of(destination)).copy(destination, source, bytes);
}

bool NeuronAllocator::initialized() { return target_is_open(); }

void NeuronAllocator::emptyCache(c10::MempoolId_t) {
  for_each_cache([](DeviceCache& cache) { cache.empty_cache(); });
}

void NeuronAllocator::recordStream(const c10::DataPtr& pointer, c10::Stream stream) {
  // Memory that came from elsewhere (from_blob, another process) has no block and outlives its streams by other means, as on CUDA.
  if (Block* block = block_of(pointer)) block->cache->record_stream(block, stream_of(stream));
}

c10::CachingDeviceAllocator::DeviceStats NeuronAllocator::getDeviceStats(c10::DeviceIndex device) { return cache(device).stats(); }

void NeuronAllocator::resetAccumulatedStats(c10::DeviceIndex device) { cache(device).reset_accumulated(); }

void NeuronAllocator::resetPeakStats(c10::DeviceIndex device) { cache(device).reset_peak(); }

std::pair<size_t, size_t> NeuronAllocator::getMemoryInfo(c10::DeviceIndex device) {
  check_device(device);
  int64_t free = 0, total = 0;
  target().memory(device).info(&free, &total);
  return {static_cast<size_t>(free), static_cast<size_t>(total)};
}

}  // namespace neuron
