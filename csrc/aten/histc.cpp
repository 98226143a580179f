// Histograms of integers. The CPU's histc takes floats only; models that count tokens per expert hand over integers on every device but
// the CPU, as CUDA allows.
#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "csrc/aten/front_end.h"

namespace neuron {
namespace {

using at::Scalar;
using at::Tensor;

/// Counts of `bins` bins of equal width over [min, max], max included, in exact arithmetic. Values outside count nowhere; min == max
/// means the range of the data.
Tensor histc_integers(const Tensor& self, int64_t bins, int64_t min, int64_t max) {
  Tensor values = self.to(at::kLong).contiguous();
  const auto* data = values.const_data_ptr<int64_t>();
  const auto numel = values.numel();
  if (min == max && numel > 0) {
    const auto [low, high] = std::minmax_element(data, data + numel);
    min = *low, max = *high;
  }
  if (min == max) --min, ++max;
  std::vector<int64_t> counts(static_cast<size_t>(bins));
  for (int64_t i = 0; i < numel; ++i) {
    if (data[i] < min || data[i] > max) continue;
    const auto bin = static_cast<__int128>(data[i] - min) * bins / (static_cast<__int128>(max) - min);
    ++counts[static_cast<size_t>(std::min<__int128>(bin, bins - 1))];
  }
  return at::tensor(counts, at::kLong).to(self.scalar_type());
}

Tensor histogram(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max) {
  static const LaunchedOp of_floats("aten::histc", ""), of_integers("neuron::histc_integers", "");
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return of_floats(self, bins, min, max)[0].toTensor();
  TORCH_CHECK(bins > 0, "torch.histc: bins must be > 0, but got ", bins);
  TORCH_CHECK(min.to<int64_t>() <= max.to<int64_t>(), "torch.histc: max must be larger than min");
  return of_integers(self, bins, min.to<int64_t>(), max.to<int64_t>())[0].toTensor();
}

Tensor& histc_out(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max, Tensor& out) {
  static const LaunchedOp of_floats("aten::histc", "out");
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    of_floats(self, bins, min, max, out);
    return out;
  }
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "torch.histc: out must have the input's dtype ", self.scalar_type(), ", but has ",
              out.scalar_type());
  const Tensor result = histogram(self, bins, min, max);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(neuron, m) { m.def("histc_integers(Tensor self, int bins, int min, int max) -> Tensor"); }

TORCH_LIBRARY_IMPL(neuron, CPU, m) { m.impl("histc_integers", TORCH_FN(histc_integers)); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("histc", TORCH_FN(histogram));
  m.impl("histc.out", TORCH_FN(histc_out));
}

}  // namespace neuron
