// Device memory that two processes of one host see: an ability that a target's Memory may have besides its own interface.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace neuron {

/// Where a piece of device memory lies, in terms that another process can use.
struct SharedRange {
  int fd = -1;           ///< the segment's file; it stays the Memory's. -1: the address lies in no segment of this process
  size_t offset = 0;     ///< of the piece in the file
  bool adopted = false;  ///< the address lies in what this process adopt()ed
};

/// How many segments this process has given back so far: as long as it has not changed, a descriptor that share() gave names the same file.
/// Counted before the descriptor is closed.
extern std::atomic<uint64_t> segments_released;

/// Reached by dynamic_cast from Memory. Thread safe.
class SharedMemory {
 public:
  /// The file behind a device address.
  virtual SharedRange share(const void* address) const = 0;

  /// Maps `bytes` of a file that share() gave in another process, from `offset` on, a multiple of the page size. Gives a device address, to
  /// be given back with Memory::release(). The memory counts against the process that allocated it only. Throws OutOfMemory when no
  /// addresses are left, or when the file is shorter than that.
  virtual void* adopt(int fd, size_t offset, size_t bytes) = 0;

 protected:
  ~SharedMemory() = default;
};

}  // namespace neuron
