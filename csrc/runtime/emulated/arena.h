// PyTorch's CPU allocator while a kernel runs for the device.
//
// Note [Arena]
// Kernels of the emulated target are ATen's CPU kernels; what they return was allocated by them. The arena makes those
// allocations land in device memory, so that no result is ever copied:
//   tracing (first run of a call): each allocation is a block of the caching allocator, which a result then keeps;
//   replay: the host has allocated the results already; the plan says which allocation of the kernel is which result. All
//   others are temporaries and come from the device's Workspace, because the host's timeline runs ahead of the stream's.
// Only the thread that runs the kernel is concerned; outside a kernel the allocator tests one thread-local and delegates.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <vector>

#include "csrc/program/op_call.h"
#include "csrc/runtime/stream.h"

namespace neuron {

struct Block;

/// Replay: hands the planned allocations their blocks. `words` are the addresses of the fresh storages, in Program order.
class ReplayArena {
 public:
  ReplayArena(const std::vector<FreshStorage>& plan, const uint64_t* words, int device);
  ~ReplayArena();
  ReplayArena(const ReplayArena&) = delete;
  ReplayArena& operator=(const ReplayArena&) = delete;

  c10::DataPtr allocate(size_t bytes);
  bool is_planned(const void* data) const;

 private:
  const std::vector<FreshStorage>& plan_;
  const uint64_t* words_;
  int device_;
  int next_ = 0;
};

/// Tracing: allocates from the caching allocator and remembers the order.
class TraceArena {
 public:
  explicit TraceArena(Stream& stream);
  ~TraceArena();
  TraceArena(const TraceArena&) = delete;
  TraceArena& operator=(const TraceArena&) = delete;

  c10::DataPtr allocate(size_t bytes);

  /// Which allocation returned `data` last; -1 when none did.
  int index_of(const void* data) const;

  /// Takes the block behind memory that any TraceArena handed out, so that its DataPtr no longer frees it; null when none did.
  static Block* take(void* data);

 private:
  Stream& stream_;
  std::vector<const void*> order_;
};

/// Puts the wrapper in front of PyTorch's CPU allocator. Called once, when the device is opened.
void install_arena();

}  // namespace neuron
