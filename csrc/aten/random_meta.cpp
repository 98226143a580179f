// What the random ops of the device return, for targets that learn it without running them.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

namespace neuron {
namespace {

using at::Scalar;
using at::Tensor;

std::tuple<Tensor, Tensor> dropout(const Tensor& input, const Scalar&, const Scalar&, const Scalar&) {
  return {at::empty_like(input), at::empty_like(input, input.options().dtype(at::kBool))};
}

Tensor multinomial(const Tensor& self, int64_t samples, bool, const Scalar&, const Scalar&) {
  auto sizes = self.sizes().vec();
  sizes.back() = samples;
  return at::empty(sizes, self.options().dtype(at::kLong));
}

}  // namespace

TORCH_LIBRARY_IMPL(neuron, Meta, m) {
  m.impl("philox_dropout", TORCH_FN(dropout));
  m.impl("philox_multinomial", TORCH_FN(multinomial));
}

}  // namespace neuron
