#include "csrc/runtime/trainium/host_call.h"

#include <ATen/native/CPUFallback.h>

namespace neuron::trainium {

// PyTorch's own fallback does all of this: lists, optional tensors, in-place and out= arguments.
void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) {
  stream.synchronize();
  at::native::cpu_fallback(op, stack, /*error_on_views=*/false, c10::DispatchKey::CPU);
}

}  // namespace neuron::trainium
