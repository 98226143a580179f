// TORCH_NEURONX_FALLBACK: whether a call may run on the host.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace neuron {

/// Counts a call that is about to run on the host because of `reason` ("it has no ..."), notes it for explain() and warns once per
/// overload; throws c10::NotImplementedError instead when the policy forbids it.
void allow_fallback(const c10::OperatorHandle& op, const std::string& reason);

}  // namespace neuron
