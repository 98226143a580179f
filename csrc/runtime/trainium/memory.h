// Device memory of a logical NeuronCore: a segment is a tensor of the runtime.
//
// Note [Addresses]
// The runtime names memory by tensor and offset, PyTorch by address. Each segment therefore reserves as many bytes of inaccessible address
// space, and a device address is a place in there: arithmetic works, comparing works, and touching it from the host faults.
#pragma once

#include <map>
#include <mutex>

#include "csrc/runtime/memory.h"
#include "csrc/runtime/trainium/nrt_async.h"

namespace neuron::trainium {

/// Where a device address lies.
struct Location {
  nrt_tensor_t* tensor = nullptr;  ///< the segment; null when the address is in none
  size_t offset = 0;
};

class TrainiumMemory final : public Memory {
 public:
  /// Memory of core `vnc`, `total` bytes of HBM. With -1 it is another process's core: nothing can be allocated, no address is in it.
  TrainiumMemory(int vnc, int64_t total, AsyncCore& queues) : vnc_(vnc), total_(total), queues_(queues) {}

  void* allocate(size_t bytes) override;
  void release(void* segment, size_t bytes) noexcept override;
  void info(int64_t* free, int64_t* total) override;
  bool contains(const void* address) const override { return locate(address).tensor != nullptr; }
  void write(void* to, const void* host, size_t bytes) override;
  void read(void* host, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void clear(void* to, size_t bytes) override;

  Location locate(const void* address) const;

  /// The runtime's tensor over [address, address + bytes), made anew; free it with nrt_tensor_free. Throws when that is not in one segment.
  nrt_tensor_t* slice(const void* address, size_t bytes) const;

 private:
  Location must_locate(const void* address, const char* what) const;

  struct Segment {
    size_t bytes;
    nrt_tensor_t* tensor;
  };
  const int vnc_;
  const int64_t total_;
  AsyncCore& queues_;
  mutable std::mutex mutex_;
  std::map<const char*, Segment> segments_;
  int64_t allocated_ = 0;
};

}  // namespace neuron::trainium
