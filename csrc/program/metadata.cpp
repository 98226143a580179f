#include "csrc/program/metadata.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <unordered_set>

namespace neuron {
namespace {

using Names = std::unordered_set<std::string_view>;

// Base names (without overload) of overloads whose result metadata depends on data and that PyTorch does not tag.
const Names& dynamic_names() {
  static const Names names{
      "aten::bincount",
      "aten::repeat_interleave",
      "aten::_unique",
      "aten::_unique2",
      "aten::unique_dim",
      "aten::unique_consecutive",
      "aten::unique_dim_consecutive",
      "aten::nonzero",
      "aten::nonzero_numpy",
      "aten::argwhere",
      "aten::masked_select",
      "aten::_ctc_loss",
      "aten::segment_reduce",
      "aten::_segment_reduce_backward",
      "aten::_embedding_bag",
      "aten::_embedding_bag_forward_only",
      "aten::linalg_lstsq",
      "aten::_linalg_check_errors",
      "aten::_pack_padded_sequence",
      "aten::tensor_split",
      "aten::_pad_packed_sequence",
      // Their outputs are scratch whose size or memory format the chosen library decides.
      "aten::mkldnn_rnn_layer",
      "aten::_nested_tensor_from_mask",
  };
  return names;
}

// Host values that PyTorch's data_dependent_output tag does not name.
const Names& host_value_names() {
  static const Names names{"aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::is_nonzero", "aten::allclose"};
  return names;
}

const Names& scalar_shape_names() {
  static const Names names{"aten::arange", "aten::range", "aten::linspace", "aten::logspace", "aten::full", "aten::scalar_tensor"};
  return names;
}

const Names& offset_names() {
  // The scatter family copies its argument with the strides and the offset that it has.
  static const Names names{"aten::as_strided_copy",  "aten::as_strided_scatter", "aten::_reshape_copy",
                           "aten::diagonal_scatter", "aten::select_scatter",     "aten::slice_scatter"};
  return names;
}

// Matrix products: their work follows from their sizes.
const Names& product_names() {
  static const Names names{"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::_addmm_activation", "aten::addmv", "aten::mv"};
  return names;
}

// Other work that grows faster than the tensors, or kernels that thread by other rules than ATen's grain size.
const Names& heavy_names() {
  static const Names names{
      "aten::addbmm",
      "aten::linear",
      "aten::matmul",
      "aten::convolution",
      "aten::convolution_backward",
      "aten::_convolution",
      "aten::convolution_overrideable",
      "aten::convolution_backward_overrideable",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
      "aten::mkldnn_convolution",
      "aten::_conv_depthwise2d",
      "aten::slow_conv3d_forward",
      "aten::_slow_conv2d_forward",
      "aten::_slow_conv2d_backward",
      "aten::slow_conv_transpose2d",
      "aten::slow_conv_transpose3d",
      "aten::slow_conv_dilated2d",
      "aten::slow_conv_dilated3d",
      "aten::_int_mm",
      "aten::_scaled_mm",
      "aten::_grouped_mm",
      "neuron::scaled_mm",
      "neuron::grouped_mm",
      "aten::_cdist_forward",
      "aten::_cdist_backward",
      "aten::_fused_adam_",
      "aten::_fused_adamw_",
      "aten::_fused_sgd_",
      "aten::_fused_adagrad_",
      "aten::_thnn_fused_gru_cell",
      "aten::_thnn_fused_lstm_cell",
  };
  return names;
}

bool has(const Names& names, const c10::OperatorHandle& op) { return names.count(op.operator_name().name) > 0; }

}  // namespace

Metadata metadata_of(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::data_dependent_output) || has(host_value_names(), op)) return Metadata::host_value;
  if (shaped_by_masks(op)) return Metadata::fixed;
  if (op.hasTag(at::Tag::dynamic_output_shape) || has(dynamic_names(), op)) return Metadata::dynamic;
  // Values returned to the host, unless they come beside tensors (sizes that attention kernels return).
  const auto& returns = op.schema().returns();
  auto is_tensor = [](const c10::Argument& r) {
    return r.type()->kind() == c10::TypeKind::TensorType || r.type()->kind() == c10::TypeKind::ListType;
  };
  if (!returns.empty() && std::none_of(returns.begin(), returns.end(), is_tensor)) return Metadata::host_value;
  return Metadata::fixed;
}

bool shaped_by_masks(const c10::OperatorHandle& op) {
  static const Names names{"aten::index", "aten::_unsafe_index"};
  return has(names, op);
}

bool scalars_shape_it(const c10::OperatorHandle& op) { return has(scalar_shape_names(), op); }

bool reads_offset(const c10::OperatorHandle& op) { return has(offset_names(), op); }

bool needs_contiguous_out(const c10::OperatorHandle& op) {
  // Of PyTorch 2.13: the triangles step from matrix to matrix by one stride, however many batch dimensions there are
  // (aten/src/ATen/native/TriangularOps.cpp), and the factorisations call them; gelu's out= goes unwritten (tests/test_strided_out.py).
  static const Names names{"aten::tril", "aten::triu", "aten::lu_unpack", "aten::linalg_lu", "aten::gelu"};
  const auto& arguments = op.schema().arguments();
  return has(names, op) && std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) { return argument.is_out(); });
}

bool accepts_cpu_tensor(const c10::OperatorHandle& op, int arg) {
  static const std::array<std::pair<std::string_view, int>, 8> table{{
      {"aten::index", 1},
      {"aten::_unsafe_index", 1},
      {"aten::index_put", 1},
      {"aten::index_put_", 1},
      {"aten::_index_put_impl_", 1},
      {"aten::_unsafe_index_put", 1},
      {"aten::_pack_padded_sequence", 1},
      {"aten::_pad_packed_sequence", 1},
  }};
  const auto& name = op.operator_name().name;
  return std::any_of(table.begin(), table.end(), [&](const auto& row) { return row.first == name && row.second == arg; });
}

bool writes_unannounced(const c10::OperatorHandle& op, const c10::Argument& argument) {
  static const Names names{"aten::native_batch_norm", "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts",
                           "aten::batch_norm_update_stats"};
  return (argument.name() == "running_mean" || argument.name() == "running_var") && has(names, op);
}

bool fix_default_dtype(Program& program) {
  auto& call = program.calls[0];
  auto is_real = [](at::ScalarType type) { return c10::isFloatingType(type) || c10::isComplexType(type); };
  for (const auto& slot : call.tensors) {
    if (is_real(slot.meta.dtype) && !slot.meta.wrapped_number) return false;
  }
  std::optional<at::ScalarType> result;
  for (const auto& returned : program.returns) {
    for (const auto& one : returned.results) {
      if (one.kind == ResultMeta::Kind::fresh && is_real(one.meta.dtype)) result = one.meta.dtype;
    }
  }
  if (!result) return false;
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "dtype") continue;
    if (call.arguments[i].isNone() && call.tensors.empty()) call.arguments[i] = static_cast<int64_t>(*result);
    if (!call.arguments[i].isNone()) return false;
  }
  return true;
}

bool is_serial(const Program& program) {
  constexpr double kGrain = 32768;           // at::internal::GRAIN_SIZE: pointwise kernels of this size stay on one thread
  constexpr double kProducts = 1024 * 1024;  // multiply-adds that one core does in the time it takes to wake another
  constexpr double kMatrix = 128 * 1024;     // elements that one core reads in that time: what a product with a vector takes
  const auto& call = program.calls[0];
  if (has(heavy_names(), call.op)) return false;
  std::vector<double> numels;
  for (const auto& slot : call.tensors) {
    double numel = 1;
    for (int64_t size : slot.meta.sizes) numel *= static_cast<double>(size);
    numels.push_back(numel);
  }
  for (const auto& fresh : program.fresh) numels.push_back(static_cast<double>(fresh.bytes) / 4);
  std::sort(numels.rbegin(), numels.rend());
  if (numels.empty()) return true;
  if (has(product_names(), call.op)) {
    // m x k times k x n: the three matrices hold mk, kn and mn elements, and mk * kn * mn is the square of the work.
    double work = numels[0] * (numels.size() > 1 ? numels[1] : 1) * (numels.size() > 2 ? numels[2] : 1);
    return std::sqrt(work) < kProducts && numels[0] < kMatrix;
  }
  // A long list adds up.
  return numels[0] * std::max(1.0, static_cast<double>(call.tensors.size()) / 8) < kGrain;
}

}  // namespace neuron
