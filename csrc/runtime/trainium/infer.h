// What a call returns, without running it: PyTorch's meta kernels.
#pragma once

#include <string>

#include "csrc/program/op_call.h"

namespace neuron::trainium {

/// Fills program.returns and program.fresh of a Program of one call by running the call on meta tensors like `tensors` (the actual tensors
/// of its slots). Throws what the meta kernel throws for bad arguments. Returns false when that cannot tell: the overload has no meta
/// kernel, or its results depend on data; `why` says so.
bool infer_program(Program& program, c10::ArrayRef<at::Tensor> tensors, std::string* why);

}  // namespace neuron::trainium
