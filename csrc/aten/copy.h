// Copies of bytes on one device, for parts of the front end that know that nothing has to be converted.
#pragma once

#include <ATen/core/Tensor.h>

namespace neuron {

/// Copies the bytes of `source` to the first ones of `destination`, in the order of the device's current stream. Both are dense and lie on
/// one device, and `destination` is not the smaller one. No kernel and so no program runs: a chip copies, whatever the sizes are.
void copy_bytes(const at::Tensor& destination, const at::Tensor& source);

}  // namespace neuron
