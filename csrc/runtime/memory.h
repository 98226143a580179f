// Raw device memory: what the caching allocator (csrc/aten/allocator) is built on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace neuron {

/// Why memory could not be had; `which` is "device" (the modelled HBM) or "host" (the machine behind an emulated device).
struct OutOfMemory {
  const char* which;
  int64_t requested;
  int64_t free;
  int64_t total;
  std::string detail;  ///< one sentence: which limit, and the setting that moves it
};

/// Raw memory of one device, in segments. Thread safe.
class Memory {
 public:
  virtual ~Memory() = default;

  /// Gives a segment of `bytes` (rounded up to a page). Throws OutOfMemory. The address is a *device* address: kernels go through
  /// host_address().
  virtual void* allocate(size_t bytes) = 0;

  /// Returns a whole segment; its pages go back to the machine at once.
  virtual void release(void* segment, size_t bytes) noexcept = 0;

  /// Bytes that allocate() could still give now, and the device's total.
  virtual void info(int64_t* free, int64_t* total) = 0;

  /// True when `address` lies inside a segment of this device.
  virtual bool contains(const void* address) const = 0;

  // Bytes into, out of and within segments. They are called where no queued work can touch the same bytes: by a record of a stream, or with
  // the stream drained. They block until the bytes have arrived, touch no Python, and throw c10::Error.
  virtual void write(void* to, const void* host, size_t bytes) = 0;
  virtual void read(void* host, const void* from, size_t bytes) = 0;
  /// `from` may lie on another device.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void clear(void* to, size_t bytes) = 0;
};

/// Distance from a device address to the address through which kernels may touch it: 0, or the offset of the read-write alias
/// under TORCH_NEURONX_GUARD=1. Set once, before the first allocation.
extern intptr_t guard_offset;

template <class T>
inline T* host_address(T* device_address) {
  return reinterpret_cast<T*>(reinterpret_cast<intptr_t>(device_address) + guard_offset);
}

template <class T>
inline T* device_address(T* host_address) {
  return reinterpret_cast<T*>(reinterpret_cast<intptr_t>(host_address) - guard_offset);
}

}  // namespace neuron
