// The gradient of embedding_bag(sparse=True). The CPU's kernel would return a sparse tensor, which no launch can allocate; PyTorch's
// composition of other ops does it on the device.
#include <ATen/Functions.h>
#include <torch/library.h>

#include "csrc/aten/front_end.h"

namespace neuron {
namespace {

using at::Tensor;

/// For each index its bag. The forward pass leaves it out where its kernel did not need it.
Tensor bags_of(const Tensor& indices, const Tensor& offsets) {
  Tensor bags = at::zeros({indices.size(0) + 1}, offsets.options());
  bags.index_add_(0, offsets, at::ones_like(offsets));
  bags[0].sub_(1);
  return bags.cumsum(0, offsets.scalar_type()).narrow(0, 0, indices.size(0));
}

Tensor backward(const Tensor& grad, const Tensor& indices, const Tensor& offsets, const Tensor& bags, const Tensor& bag_size,
                const Tensor& maximum_indices, int64_t num_weights, bool scale_by_frequency, int64_t mode, bool sparse,
                const std::optional<Tensor>& per_sample_weights, int64_t padding_idx) {
  static const LaunchedOp dense("aten::_embedding_bag_backward", "");
  if (!sparse)
    return dense(grad, indices, offsets, bags, bag_size, maximum_indices, num_weights, scale_by_frequency, mode, sparse, per_sample_weights,
                 padding_idx)[0]
        .toTensor();
  const Tensor known = bags.numel() == 0 && indices.numel() > 0 ? bags_of(indices, offsets) : bags;
  return at::_embedding_bag_sparse_backward(grad, indices, offsets, known, bag_size, num_weights, scale_by_frequency, mode,
                                            per_sample_weights, padding_idx);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_embedding_bag_backward", TORCH_FN(backward)); }

}  // namespace neuron
