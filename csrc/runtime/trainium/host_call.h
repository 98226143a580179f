// Calls that a NeuronCore cannot run, on the host.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "csrc/runtime/stream.h"

namespace neuron::trainium {

/// Copies the call's tensors to the host after all earlier work of `stream`, runs PyTorch's CPU kernel, writes back what it changed, and
/// brings the results to the device. Arguments that share memory share it on the host too. Throws what the kernel throws.
void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream);

}  // namespace neuron::trainium
