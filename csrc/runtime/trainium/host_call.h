// Calls that a NeuronCore cannot run, on the host.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "csrc/runtime/stream.h"

namespace neuron::trainium {

/// Runs a call of strided tensors by PyTorch's CPU kernel, after all earlier work of `stream`. What its arguments show of the device's
/// storages is copied to the host, and back where the schema says that it is written; arguments that share memory share it there too.
/// Results have the kernel's strides. All of it are bytes: nothing is launched, so that it serves copies and any dtype. Throws what the
/// kernel throws, and then writes nothing.
void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream);

/// The same for tensors of any layout, by PyTorch's own fallback.
void call_on_host_any_layout(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream);

}  // namespace neuron::trainium
