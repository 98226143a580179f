#include "csrc/aten/layouts.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "csrc/aten/guard.h"
#include "csrc/aten/interrupt.h"
#include "csrc/program/explain.h"
#include "csrc/program/program_target.h"
#include "csrc/runtime/stream.h"

namespace neuron {
namespace {

using c10::DispatchKey;

constexpr std::array<std::pair<DispatchKey, DispatchKey>, 4> kKeys{{
    {DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1},
    {DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1},
    {DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorPrivateUse1},
    {DispatchKey::QuantizedCPU, DispatchKey::QuantizedPrivateUse1},
}};

// Overloads with dense arguments that make, or read the parts of, tensors of other layouts: beginnings of their names.
constexpr std::array kFromDense = {
    "_to_sparse",         "sparse_",          "_sparse",          "quantize_per",         "_make_per",       "_empty_affine",
    "_empty_per_channel", "_nested_tensor",   "_nested_from",     "_nested_view",         "_nested_compute", "nested_",
    "_coalesce",          "_convert_indices", "_validate_sparse", "_validate_compressed", "to_padded",       "_jagged",
    "_padded_dense"};

// They look at the description of a sparse tensor, or hand out its parts, whatever these lie on: a fake tensor's lie on "meta".
constexpr std::array kDescribe = {"sparse_dim", "dense_dim", "_dimI",        "_dimV",       "_nnz",         "is_coalesced", "_coalesced_",
                                  "_indices",   "_values",   "crow_indices", "col_indices", "ccol_indices", "row_indices"};

int device_of(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().is_privateuseone())
    return value.toTensor().device().index();
  if (value.isDevice() && value.toDevice().is_privateuseone())
    return value.toDevice().has_index() ? value.toDevice().index() : current_device();
  if (value.isList()) {
    for (const auto& element : value.toListRef()) {
      if (int device = device_of(element); device >= 0) return device;
    }
  }
  return -1;
}

void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  int device = -1;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (device < 0) device = device_of(value);
  }
  if (device < 0) device = current_device();
  Stream& stream = *current_stream(device);
  interrupt("a sparse, nested or quantized tensor");
  note_sync("sparse, nested and quantized tensors run inline");
  stream.synchronize();
  program_target().run_any_layout(op, stack, stream);
}

/// The CPU's kernel of such an overload, on the tensor itself.
template <DispatchKey cpu>
void describe(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(cpu), stack);
}

bool describes(std::string_view name) { return std::find(kDescribe.begin(), kDescribe.end(), name) != kDescribe.end(); }

bool makes_layouts(std::string_view name) {
  for (std::string_view start : kFromDense) {
    if (name.substr(0, start.size()) == start) return true;
  }
  return false;
}

}  // namespace

int register_layouts() {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto* handles = new std::vector<c10::RegistrationHandleRAII>;  // kept for the life of the process
  auto add = [&](const c10::OperatorHandle& op, DispatchKey key) {
    if (op.hasKernelForDispatchKey(key)) return;
    auto kernel = c10::KernelFunction::makeFromBoxedFunction<&call>();
    if (describes(std::string_view(op.operator_name().name).substr(6))) {
      if (key == DispatchKey::SparsePrivateUse1)
        kernel = c10::KernelFunction::makeFromBoxedFunction<&describe<DispatchKey::SparseCPU>>();
      else if (key == DispatchKey::SparseCsrPrivateUse1)
        kernel = c10::KernelFunction::makeFromBoxedFunction<&describe<DispatchKey::SparseCsrCPU>>();
    }
    handles->push_back(
        dispatcher.registerImpl(op.operator_name(), key, kernel, std::nullopt, nullptr, "torch_neuronx: csrc/aten/layouts.cpp"));
  };
  for (auto [cpu, ours] : kKeys) {
    for (const auto& name : dispatcher.getAllOpNamesForDispatchKey(cpu)) {
      if (auto op = dispatcher.findSchema(name); op && name.name.compare(0, 6, "aten::") == 0) add(*op, ours);
    }
  }
  for (const auto& name : dispatcher.getAllOpNamesForDispatchKey(DispatchKey::CPU)) {
    if (name.name.compare(0, 6, "aten::") != 0 || !makes_layouts(std::string_view(name.name).substr(6))) continue;
    if (auto op = dispatcher.findSchema(name)) add(*op, DispatchKey::PrivateUse1);
  }
  return static_cast<int>(handles->size());
}

}  // namespace neuron
