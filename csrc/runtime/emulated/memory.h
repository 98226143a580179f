// Device memory of the emulated target: segments of host memory, one memfd each, limited by the modelled HBM and by the host.
//
// Note [Address windows]
// Each device owns a window of addresses, reserved once and inaccessible where no segment lies. So "which device is this address
// of" is a comparison, a stale device pointer faults, and a host pointer is never mistaken for a device pointer. Under
// TORCH_NEURONX_GUARD=1 the windows stay inaccessible altogether and segments are mapped `guard_offset` above them, as if the
// memory were on a chip: what dereferences a device address without host_address() faults.
//
// Note [Page faults]
// The first touch of a memfd page costs what the first touch of anonymous memory costs (about 2 us in a virtual machine, 2.1 to
// 2.6 for either; reading and writing afterwards run at the same speed). Filling the file ahead (fallocate, MADV_POPULATE_WRITE)
// saves nothing, as the cost is that of the mapping, so pages are left to the first touch. Huge pages are asked for, which has an
// effect where /sys/kernel/mm/transparent_hugepage/shmem_enabled is "advise".
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/runtime/memory.h"
#include "csrc/runtime/shared_memory.h"

namespace neuron::emulated {

/// Addresses of the devices of a process; see Note [Address windows]. Thread safe.
class AddressSpace {
 public:
  /// Segments lie at multiples of this.
  static constexpr size_t granule = size_t{2} << 20;

  /// Reserves windows for `devices` devices of `device_bytes` of memory each. Sets neuron::guard_offset. Throws std::bad_alloc when the
  /// process may not reserve that much address space (ulimit -v).
  AddressSpace(int devices, int64_t device_bytes, bool guard);
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  char* window(int device) const { return base_ + device * window_bytes_; }
  size_t window_bytes() const { return window_bytes_; }

 private:
  char* base_ = nullptr;
  size_t window_bytes_ = 0;
  size_t mapped_bytes_ = 0;
};

/// What the user allows devices to take of the host, bytes; 0 stands for the default.
struct HostLimits {
  int64_t limit = 0;    ///< most that all segments of the process may add up to
  int64_t reserve = 0;  ///< what to leave free on the machine; default a twentieth of it, between 64 MiB and 2 GiB
};

/// The host memory behind all devices of a process. Thread safe.
///
/// Linux gives out memory that it does not have and kills a process when it is touched. So a segment is refused unless the machine (and the
/// control group) could give now all pages that the process's segments have not touched yet. Other processes do the same with theirs, but
/// their untouched pages are not visible here: the reserve is for that.
class HostBudget {
 public:
  explicit HostBudget(HostLimits limits) : limits_(limits) {}

  /// Adds a segment of `bytes` in `fd`, or throws OutOfMemory.
  void add(int fd, int64_t bytes);
  void remove(int fd, int64_t bytes) noexcept;

  /// Bytes that add() could still accept now.
  int64_t free();

 private:
  struct Space {
    int64_t free;
    int64_t total;
    std::string detail;
  };
  Space space();        // needs mutex_
  int64_t untouched();  // needs mutex_

  const HostLimits limits_;
  std::mutex mutex_;
  std::map<int, int64_t> fresh_;  // fd -> bytes, of segments not known to be wholly touched
  int64_t committed_ = 0;
};

class EmulatedMemory final : public Memory, public SharedMemory {
 public:
  EmulatedMemory(std::shared_ptr<AddressSpace> space, std::shared_ptr<HostBudget> host, int device, int64_t total);
  ~EmulatedMemory() override;

  void* allocate(size_t bytes) override;
  void release(void* segment, size_t bytes) noexcept override;
  void info(int64_t* free, int64_t* total) override;
  bool contains(const void* address) const override;
  void write(void* to, const void* host, size_t bytes) override;
  void read(void* host, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void clear(void* to, size_t bytes) override;

  SharedRange share(const void* address) const override;
  void* adopt(int fd, size_t offset, size_t bytes) override;

  /// File that holds `address`, and where in it; -1 when no segment of ours does. The descriptor stays ours: duplicate it to keep it.
  int segment_fd(const void* address, size_t* offset) const;

 private:
  struct Segment {
    size_t bytes;
    int fd;  ///< -1 when adopted: the memory is another process's
  };
  using Segments = std::map<const char*, Segment>;
  Segments::const_iterator find(const void* address) const;  // needs mutex_
  char* take_addresses(size_t bytes);                        // needs mutex_
  void give_addresses(char* address, size_t bytes);          // needs mutex_
  void map(char* address, size_t bytes, int fd, size_t offset);
  void set_used(char* address, size_t bytes, bool used);

  const std::shared_ptr<AddressSpace> space_;
  const std::shared_ptr<HostBudget> host_;
  const int64_t total_;
  char* const begin_;
  char* const end_;
  // Bytes in use of each granule, so that contains() needs no lock.
  const std::unique_ptr<std::atomic<uint32_t>[]> used_;

  mutable std::mutex mutex_;
  Segments segments_;
  std::map<char*, size_t> holes_;  // free addresses, merged
  int64_t allocated_ = 0;
};

}  // namespace neuron::emulated
