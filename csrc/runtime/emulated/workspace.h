// Device memory for what a kernel needs only while it runs.
//
// The caching allocator works on the host's timeline, which runs ahead of the streams': a block that it calls free may still be in use
// by queued work. A kernel that runs now must therefore not take blocks from there. A Workspace lives on the streams' timeline: what
// is put back is free at once. Both take their segments from the same Memory, so that both count against the device's limit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "csrc/runtime/memory.h"

namespace c10 {
class DataPtr;
}

namespace neuron {

/// Thread safe. Blocks below 1 MiB are powers of two, cut from segments of one size; larger ones are segments of their own, kept for reuse.
class Workspace {
 public:
  explicit Workspace(Memory& memory) : memory_(memory) {}
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// At least `bytes`, aligned to 64, at an address that the host may touch (no host_address() needed). Throws OutOfMemory, after a trim().
  void* get(size_t bytes);

  /// Gives back what get() of any Workspace gave.
  static void put(void* data);

  /// Gives segments in which nothing is in use back to the device.
  void trim();

  int64_t bytes_reserved() const;
  int64_t peak_bytes_reserved() const;
  /// Bytes of the blocks in use now.
  int64_t bytes_in_use() const;

 private:
  struct Segment;
  struct Header;
  static constexpr int kClasses = 11;  // 1 KiB to 1 MiB

  void* take(Segment* segment);                        // needs mutex_
  Segment* segment_for(int size_class, size_t bytes);  // needs mutex_
  Segment* grow(int size_class, size_t block_bytes, size_t segment_bytes);
  void release_unused();
  void give_back(Segment* segment, Header* header);

  Memory& memory_;
  mutable std::mutex mutex_;
  std::array<std::vector<Segment*>, kClasses> shared_;  // segments of each class that have free blocks
  std::multimap<size_t, Segment*> whole_;               // free segments of one block, by size
  std::vector<Segment*> segments_;
  int64_t reserved_ = 0, peak_ = 0, in_use_ = 0;
};

/// The workspace of a device. Lives as long as the process.
Workspace& workspace(int device);

/// workspace(device).get() as a DataPtr of the CPU that puts it back. Throws c10::OutOfMemoryError. (Defined in csrc/aten/workspace.cpp.)
c10::DataPtr workspace_allocate(int device, size_t bytes);

}  // namespace neuron
