// Calls on tensors of other layouts than strided: sparse COO, compressed sparse, nested, quantized.
#pragma once

#include "csrc/program/program_target.h"

namespace neuron {

/// See ProgramTarget::run_any_layout(). Every tensor of the device becomes a CPU tensor of the same layout whose parts lie on the same
/// memory; what the CPU kernel returns or replaces becomes a tensor of the device the other way round. No element is copied.
void run_layout_call(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream);

}  // namespace neuron
