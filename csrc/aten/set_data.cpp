// Lets `parameter.data = tensor` move a parameter between CPU and device, as module.to(device) does.
//
// PyTorch asks whether one tensor's metadata may be copied over another's. Its own answer lists the backends by name and not this one,
// so module.to("neuron") would make new Parameters: tied weights would come apart, and an optimizer that was made before the move
// would go on updating the old ones.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace neuron {
namespace {

bool is_dense(const at::Tensor& tensor) {
  constexpr auto backends = c10::DispatchKeySet({c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit});
  return tensor.key_set().has_any(backends) && tensor.key_set().has_any(c10::DispatchKeySet(c10::DispatchKey::Dense));
}

bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  if (is_dense(self) && is_dense(from)) return true;
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type)); }

}  // namespace neuron
