// Pinned host memory.
#pragma once

namespace neuron {

/// True when `address` lies in memory that came from the pinned host allocator (tensor.pin_memory(), DataLoader(pin_memory=True)).
bool is_pinned(const void* address);

}  // namespace neuron
