// The pieces of batch normalisation across ranks (torch.nn.SyncBatchNorm), which PyTorch has for CUDA only.
//
// Shapes: input [N, C, *]; statistics [C], or [ranks, C] where they were gathered. Statistics of half and bfloat16 inputs are float32.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace neuron {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

/// All dimensions but that of the channels.
std::vector<int64_t> reduced(const Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < input.dim(); ++dim)
    if (dim != 1) dims.push_back(dim);
  return dims;
}

/// [C] as [1, C, 1...], to go with `input`.
Tensor spread(const Tensor& channels, const Tensor& input) {
  std::vector<int64_t> sizes(input.dim(), 1);
  sizes[1] = channels.numel();
  return channels.reshape(sizes);
}

Tensor wide(const Tensor& tensor) { return at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor; }

bool given(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  auto [variance, mean] = at::var_mean(wide(input), reduced(input), /*unbiased=*/false);
  return {mean, (variance + eps).rsqrt()};
}

Tensor elemt(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const Tensor& mean, const Tensor& invstd, double) {
  auto result = (wide(input) - spread(mean, input)) * spread(invstd, input);
  if (given(weight)) result = result * spread(*weight, input);
  if (given(bias)) result = result + spread(*bias, input);
  return result.to(input.scalar_type());
}

void update(const MaybeTensor& running, const Tensor& value, double momentum) {
  if (!given(running)) return;
  Tensor target = *running;
  target.copy_(target * (1 - momentum) + value.to(target.scalar_type()) * momentum);
}

/// The statistics of all ranks' inputs together, from each rank's own and how many values it had for a channel.
std::tuple<Tensor, Tensor> gather_stats_with_counts(const Tensor&, const Tensor& mean, const Tensor& invstd,
                                                    const MaybeTensor& running_mean, const MaybeTensor& running_var, double momentum,
                                                    double eps, const Tensor& counts) {
  const auto share = wide(counts).reshape({-1, 1}).to(mean.scalar_type());
  const auto count = share.sum();
  const auto whole_mean = (mean * share).sum(0) / count;
  const auto variance = invstd.square().reciprocal() - eps;
  const auto squares = ((variance + (mean - whole_mean).square()) * share).sum(0);
  update(running_mean, whole_mean, momentum);
  update(running_var, squares / (count - 1), momentum);
  return {whole_mean, (squares / count + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather_stats(const Tensor& input, const Tensor& mean, const Tensor& invstd, const MaybeTensor& running_mean,
                                        const MaybeTensor& running_var, double momentum, double eps, int64_t count) {
  const auto counts = at::full({mean.size(0)}, count, mean.options());
  return gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad_out, const Tensor& input, const Tensor& mean,
                                                           const Tensor& invstd, const MaybeTensor& weight, bool input_g, bool weight_g,
                                                           bool bias_g) {
  const auto grad = wide(grad_out);
  const auto sum_dy = grad.sum(reduced(input));
  const auto sum_dy_xmu = (grad * (wide(input) - spread(mean, input))).sum(reduced(input));
  const auto dtype = given(weight) ? weight->scalar_type() : input.scalar_type();
  return {input_g ? sum_dy : Tensor(), input_g ? sum_dy_xmu : Tensor(), weight_g ? (sum_dy_xmu * invstd).to(dtype) : Tensor(),
          bias_g ? sum_dy.to(dtype) : Tensor()};
}

Tensor backward_elemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean, const Tensor& invstd, const MaybeTensor& weight,
                      const Tensor& sum_dy, const Tensor& sum_dy_xmu, const Tensor& counts) {
  const auto count = counts.sum().to(mean.scalar_type());
  const auto scale = given(weight) ? invstd * *weight : invstd;
  const auto slope = invstd.square() * sum_dy_xmu / count;
  const auto grad = wide(grad_out) - spread(sum_dy / count, input) - (wide(input) - spread(mean, input)) * spread(slope, input);
  return (grad * spread(scale, input)).to(input.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("batch_norm_stats", TORCH_FN(stats));
  m.impl("batch_norm_elemt", TORCH_FN(elemt));
  m.impl("batch_norm_gather_stats", TORCH_FN(gather_stats));
  m.impl("batch_norm_gather_stats_with_counts", TORCH_FN(gather_stats_with_counts));
  m.impl("batch_norm_backward_reduce", TORCH_FN(backward_reduce));
  m.impl("batch_norm_backward_elemt", TORCH_FN(backward_elemt));
}

}  // namespace neuron
