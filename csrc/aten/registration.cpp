// Which overloads get the boxed kernel. A backend fallback would not do: composite kernels win over it, and would arrive
// shredded (meta kernel, empty, out= kernel: three dispatches and a decomposed Program).
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "csrc/aten/front_end.h"
#include "csrc/aten/layouts.h"

namespace neuron {
namespace {

// Base names, or beginnings of them, that keep the kernel they have (composite), each group for one reason.
constexpr std::array kLeftAlone = {
    // They make or change storages and devices: csrc/aten/{factories,views,copy}.cpp, or composites of those.
    "empty",
    "new_",
    "set",
    "resize",
    "_resize_output",
    "copy_",
    "_copy_from",
    "_to_copy",
    "from_file",
    "_pin_memory",
    "is_pinned",
    "record_stream",
    "_lazy_clone",
    "_efficientzerotensor",
    "_empty",
    "_local_scalar_dense",
    // Views in all but their schema.
    "_unsafe_view",
    "unsafe_split",
    "lift",
    "_fw_primal",
    "_make_dual",
    "detach",
    // They look at metadata only.
    "sym_",
    "_functional_sym",
    "is_same_size",
    "dense_dim",
    "sparse_dim",
    "is_coalesced",
    "_has_same",
    "_new_zeros_with",
    "_assert_tensor_metadata",
    "_print",
    "_make_dep_token",
    // Other layouts: sparse, nested, quantized, oneDNN's own.
    "_nested",
    "nested",
    "sparse_",
    "_sparse",
    "to_sparse",
    "_to_sparse",
    "_coalesce",
    "_indices",
    "_values",
    "_to_dense",
    "to_mkldnn",
    "_mkldnn",
    "mkldnn_",
    "quantize",
    "_make_per",
    "dequantize",
    "_nnpack",
    "copy_sparse",
    // For other backends, or for PyTorch's own tests.
    "convolution_overrideable",
    "convolution_backward_overrideable",
    "_scaled_dot_product_fused_attention_overrideable",
    "_test_",
};

bool left_alone(std::string_view name) {
  return std::any_of(kLeftAlone.begin(), kLeftAlone.end(), [&](std::string_view start) {
    // An underscore or a letter at the end of a row means "begins with"; whole names are covered by it as well.
    return name.substr(0, start.size()) == start;
  });
}

/// Whether a type is `kind`, or an optional or a list of it. (containedTypes() would copy: this runs thousands of times at load.)
bool holds(const c10::Type& type, c10::TypeKind kind) {
  if (type.kind() == kind) return true;
  if (type.kind() == c10::TypeKind::OptionalType) return holds(*type.expectRef<c10::OptionalType>().getElementType(), kind);
  if (type.kind() == c10::TypeKind::ListType) return holds(*type.expectRef<c10::ListType>().getElementType(), kind);
  return false;
}

constexpr const char* kBoxed = "boxed";

const char* verdict(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const auto& name = op.operator_name().name;
  const bool aten = name.compare(0, 6, "aten::") == 0;
  if (!aten && name.compare(0, 8, "neuron::") != 0) return "other namespace: fallback";
  const bool cpu = op.hasKernelForDispatchKey(DispatchKey::CPU);
  const bool composite = op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
  if (op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) return "own kernel";
  if (!cpu && !composite) return "no CPU kernel, or a composite that autograd looks into";
  if (aten && left_alone(std::string_view(name).substr(6))) return "left alone";
  if (op.hasTag(at::Tag::inplace_view)) return "changes metadata only";
  // Their draws would come from the CPU's generator.
  const bool no_dropout = name == "aten::_scaled_dot_product_flash_attention_for_cpu";  // tagged, but the CPU's kernel refuses dropout
  if (aten && op.hasTag(at::Tag::nondeterministic_seeded) && !no_dropout) return "random: composite of our own kernels";
  const auto& schema = op.schema();
  for (const auto& returned : schema.returns()) {
    if (returned.alias_info() && !returned.alias_info()->isWrite()) return "view";
  }
  bool tensors = false, devices = false;
  for (const auto& argument : schema.arguments()) {
    tensors |= holds(*argument.type(), c10::TypeKind::TensorType);
    devices |= holds(*argument.type(), c10::TypeKind::DeviceObjType);
  }
  if (tensors && devices) return "may change the device: composite";
  if (!tensors && !devices) return "no tensor and no device";
  return kBoxed;
}

}  // namespace

std::string front_end_verdict(const c10::OperatorHandle& op) { return verdict(op); }

int register_front_end() {
  auto& dispatcher = c10::Dispatcher::singleton();
  // The handles would undo the registrations: they are kept for the life of the process. The dispatcher is called directly because
  // torch::Library would parse each name again and describe each registration in words, which doubles the cost of loading.
  auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  handles->reserve(2048);
  for (const auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op || std::string_view(verdict(*op)) != kBoxed) continue;
    handles->push_back(dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1, boxed_kernel(*op), std::nullopt, nullptr,
                                               "torch_neuronx: csrc/aten/registration.cpp"));
  }
  return static_cast<int>(handles->size()) + register_layouts();
}

}  // namespace neuron
