// The device's allocator as PyTorch knows it, and shorter ways for our own front end.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <mutex>

#include "csrc/aten/caching_allocator.h"

namespace neuron {

/// Registered for PrivateUse1; torch.accelerator.memory and torch.neuron's memory functions read it. Thread safe.
///
/// Memory is handed out in the order of the current stream: see Note [Blocks]. What is thrown when memory is full is c10::OutOfMemoryError,
/// in Python torch.OutOfMemoryError; everything that was allocated stays valid, and so does the device.
class NeuronAllocator final : public c10::DeviceAllocator {
 public:
  /// Lives as long as the process.
  static NeuronAllocator& get();

  // ---- For our own code. ----

  /// A block of at least `bytes` (> 0) on `device` for work on `stream`. Throws c10::OutOfMemoryError.
  Block* allocate_block(int device, Stream* stream, size_t bytes);
  static void free_block(Block* block) noexcept;

  /// Device address of the block.
  static void* data(const Block* block) { return block->data; }

  /// Makes a DataPtr that owns the block: of device neuron:i, or of the CPU with the address through which the host may touch it.
  static c10::DataPtr make_data_ptr(Block* block);
  static c10::DataPtr make_cpu_data_ptr(Block* block);

  /// The block that a DataPtr of either kind owns; null when it owns something else.
  static Block* block_of(const c10::DataPtr& pointer);

  /// Takes the block out of a DataPtr without freeing it; null, and the DataPtr untouched, when it owns something else.
  static Block* release(c10::DataPtr&& pointer);

  /// Device whose memory holds `address` (of a tensor, or inside of one), -1 when none. Workspaces count as well.
  static int device_of(const void* address);

  /// The cache of a device, opened by the first call. Throws for a device that does not exist.
  DeviceCache& cache(int device) {
    if (static_cast<unsigned>(device) < kMost) [[likely]] {
      if (DeviceCache* ready = caches_[device].load(std::memory_order_acquire)) [[likely]]
        return *ready;
    }
    return open(device);
  }
  /// The same, null when it was never opened.
  DeviceCache* cache_if_open(int device) const { return caches_[device].load(std::memory_order_acquire); }

  /// Throws the c10::OutOfMemoryError that tells what was full and what to do.
  [[noreturn]] static void raise_out_of_memory(DeviceCache& cache, size_t bytes, const OutOfMemory& full);

  /// Called with a device whose memory is short: give back what is not needed. Set once, before the device is used.
  static void (*on_pressure)(int device);

  // ---- c10::DeviceAllocator. ----

  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;
  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override { return block_of(pointer) != nullptr; }
  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  /// Bytes free, and the device's total. On an emulated device also what the host could not give is not free.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

 private:
  static constexpr unsigned kMost = 128;
  NeuronAllocator() = default;
  DeviceCache& open(int device);

  std::atomic<DeviceCache*> caches_[kMost] = {};
  std::mutex opening_;
};

}  // namespace neuron
