// addcmul and addcdiv of lists whose numbers come as a tensor, one for each of the list. CUDA's kernels want it on the host, and read it;
// one on the device is read here too. The call goes on with the numbers, so that it is one Program whatever they are.
#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using at::TensorList;

auto numbers(const Tensor& scalars, TensorList list) {
  return at::native::convert_tensor_to_scalar_list(scalars.cpu(), static_cast<int64_t>(list.size()));
}

std::vector<Tensor> addcmul(TensorList self, TensorList a, TensorList b, const Tensor& scalars) {
  return at::_foreach_addcmul(self, a, b, numbers(scalars, self));
}

std::vector<Tensor> addcdiv(TensorList self, TensorList a, TensorList b, const Tensor& scalars) {
  return at::_foreach_addcdiv(self, a, b, numbers(scalars, self));
}

void addcmul_(TensorList self, TensorList a, TensorList b, const Tensor& scalars) {
  at::_foreach_addcmul_(self, a, b, numbers(scalars, self));
}

void addcdiv_(TensorList self, TensorList a, TensorList b, const Tensor& scalars) {
  at::_foreach_addcdiv_(self, a, b, numbers(scalars, self));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_foreach_addcmul.Tensor", TORCH_FN(addcmul));
  m.impl("_foreach_addcdiv.Tensor", TORCH_FN(addcdiv));
  m.impl("_foreach_addcmul_.Tensor", TORCH_FN(addcmul_));
  m.impl("_foreach_addcdiv_.Tensor", TORCH_FN(addcdiv_));
}
