// Host memory in the place of device memory that no other process can see: collectives of a target without SharedMemory work on it.
//
// Note [Staging]
// Such a target's device memory is reached through its Memory alone. Each tensor of a call therefore gets a place in host memory that the
// ranks of this host share; what the collective reads is copied there before it begins, and what it has written is copied to the device
// before it counts as done. Whoever steps the engine copies: by then the streams have reached the points that the operation names, and
// what uses the results waits for the operation. Places are kept for later calls, and other processes map each block once.
#pragma once

#include <cstddef>
#include <vector>

#include "csrc/runtime/shared_memory.h"

namespace neuron::distributed {

/// Whether collectives of `device` need staging.
bool is_staged(int device);

/// Memory that other processes of this host can map, for whoever takes it until it is given back; values are arbitrary. Any thread.
char* take_place(size_t bytes);
void give_back_place(char* place, size_t bytes) noexcept;

/// Where such memory lies, for other processes; fd -1 when `address` is in none.
SharedRange place_range(const void* address);

/// Bytes to be copied between a device and their place on the host.
struct StagedCopy {
  void* device_memory;
  void* host_memory;
  size_t bytes;
  int device;
};

/// To the host. Blocks until the bytes have arrived; throws c10::Error.
void fetch(const std::vector<StagedCopy>& copies);

/// To the device; the same.
void deliver(const std::vector<StagedCopy>& copies);

size_t bytes_of(const std::vector<StagedCopy>& copies);

}  // namespace neuron::distributed
