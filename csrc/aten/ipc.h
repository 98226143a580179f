// Storages that two processes of one host share.
//
// Note [Whose memory it is]
// The memory stays the sender's: its Python side (torch_neuronx/ipc.py) keeps the storage until the reading end of a pipe tells that nobody
// holds the writing end any more. That end goes to the receiver, which closes it when its storage is gone and all work on it has
// run; the kernel closes it when the receiver dies, however it dies.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/runtime/shared_memory.h"

namespace neuron {

/// The file behind the memory of a storage. Waits for nothing. Throws c10::Error when the storage cannot be shared.
SharedRange share_storage(int device, const void* address);

/// A uint8 tensor [bytes] on `device` over memory that another process shared. `memory` stays the caller's, `alive` is closed when the
/// memory is no longer used, even when this throws.
at::Tensor open_shared(int device, int memory, size_t offset, size_t bytes, int alive);

}  // namespace neuron
