#include "csrc/runtime/emulated/layouts.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "csrc/aten/allocator.h"
#include "csrc/aten/device_tensor.h"
#include "csrc/runtime/emulated/arena.h"
#include "csrc/runtime/emulated/executable.h"
#include "csrc/runtime/emulated/stream.h"

namespace neuron {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

at::SparseTensorImpl* coo(const at::Tensor& tensor) { return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl()); }
at::SparseCsrTensorImpl* compressed(const at::Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}
at::QTensorImpl* quantized(const at::Tensor& tensor) { return static_cast<at::QTensorImpl*>(tensor.unsafeGetTensorImpl()); }

bool is_coo(const at::Tensor& tensor) { return tensor.layout() == at::kSparse; }
bool is_compressed(const at::Tensor& tensor) { return at::sparse_csr::is_sparse_compressed(tensor); }

/// The same tensor on another device: its parts go through `convert`.
template <class Convert>
at::Tensor convert_parts(const at::Tensor& tensor, c10::Device device, Convert convert) {
  const bool to_cpu = device.is_cpu();
  c10::OptionalDeviceGuard current;  // a new sparse tensor is of the current device
  if (!to_cpu) current.reset_device(device);
  if (is_coo(tensor)) {
    auto made = at::detail::make_tensor<at::SparseTensorImpl>(
        DispatchKeySet(to_cpu ? DispatchKey::SparseCPU : DispatchKey::SparsePrivateUse1), tensor.dtype());
    coo(made)->raw_resize_(coo(tensor)->sparse_dim(), coo(tensor)->dense_dim(), tensor.sizes());
    coo(made)->set_indices_and_values_unsafe(convert(coo(tensor)->indices()), convert(coo(tensor)->values()));
    coo(made)->set_coalesced(coo(tensor)->coalesced());
    return made;
  }
  if (is_compressed(tensor)) {
    auto made = at::detail::make_tensor<at::SparseCsrTensorImpl>(
        DispatchKeySet(to_cpu ? DispatchKey::SparseCsrCPU : DispatchKey::SparseCsrPrivateUse1), device, tensor.layout(), tensor.dtype());
    compressed(made)->set_member_tensors(convert(compressed(tensor)->compressed_indices()), convert(compressed(tensor)->plain_indices()),
                                         convert(compressed(tensor)->values()), tensor.sizes());
    return made;
  }
  TORCH_INTERNAL_ASSERT(tensor.is_nested());
  // Sizes, strides and offsets of a nested tensor live on the host on every device.
  auto* impl = at::native::get_nested_tensor_impl(tensor);
  auto buffer = impl->get_unsafe_storage_as_tensor();
  return at::detail::make_tensor<at::native::NestedTensorImpl>(convert(buffer), impl->get_nested_sizes(), impl->get_nested_strides(),
                                                               impl->get_storage_offsets());
}

class LayoutCall {
 public:
  LayoutCall(const c10::OperatorHandle& op, Stream& stream)
      : op_(op),
        stream_(stream),
        device_(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(stream.device)),
        keeps_arguments_(named("per_channel")),
        takes_host_tensors_(named("copy_") || named("nested") || named("jagged") || named("quant") || keeps_arguments_) {}

  void run(torch::jit::Stack* stack) {
    const size_t arity = op_.schema().arguments().size();
    torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(arity), stack->end());
    for (size_t i = 0; i < arity; ++i) arguments[i] = view_value(arguments[i], op_.schema().arguments()[i]);
    torch::jit::Stack results;
    {
      InlineRun alone(stream_);
      c10::impl::ForceDispatchKeyGuard keys(c10::default_included_set, keys_above_kernels());
      if (!results_on_host_) arena_.emplace(stream_);  // a CPU tensor must not end up with device memory
      op_.callBoxed(&arguments);
      adopt_writes();
      for (const auto& value : arguments) results.push_back(adopt_value(value));
    }
    arena_.reset();
    torch::jit::drop(*stack, arity);
    for (auto& result : results) stack->push_back(std::move(result));
  }

 private:
  struct Known {
    at::Tensor device, cpu;
    c10::intrusive_ptr<c10::TensorImpl> parts[3];  // of the CPU tensor, before the call
    const void* data;
  };

  bool named(const char* part) const { return op_.operator_name().name.find(part) != std::string::npos; }
  const TraceArena* arena() const { return arena_ ? &*arena_ : nullptr; }

  c10::IValue view_value(const c10::IValue& value, const c10::Argument& argument);
  at::Tensor view(const at::Tensor& tensor);
  c10::Storage view_storage(const c10::Storage& device);
  void adopt_writes();
  c10::IValue adopt_value(const c10::IValue& value);
  at::Tensor adopt(const at::Tensor& cpu);
  c10::Storage adopt_storage(const c10::Storage& cpu);

  const c10::OperatorHandle& op_;
  Stream& stream_;
  const c10::Device device_;
  const bool keeps_arguments_;     ///< a quantizer holds on to its scales: they must be copies
  const bool takes_host_tensors_;  ///< beside tensors of the device
  bool results_on_host_ = false;
  std::optional<TraceArena> arena_;
  std::vector<Known> known_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // device, CPU
};

std::array<at::Tensor, 3> parts_of(const at::Tensor& tensor) {
  if (is_coo(tensor)) return {coo(tensor)->indices(), coo(tensor)->values(), {}};
  if (is_compressed(tensor))
    return {compressed(tensor)->compressed_indices(), compressed(tensor)->plain_indices(), compressed(tensor)->values()};
  return {};
}

c10::IValue LayoutCall::view_value(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isDevice()) {
    results_on_host_ |= value.toDevice().is_cpu();
    return value.toDevice().is_privateuseone() ? c10::IValue(c10::Device(c10::DeviceType::CPU)) : value;
  }
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    results_on_host_ |= tensor.defined() && tensor.is_cpu() && argument.alias_info() && argument.alias_info()->isWrite();
    return view(tensor);
  }
  if (!value.isList()) return value;
  auto list = value.toList().copy();
  for (size_t i = 0; i < list.size(); ++i) {
    c10::IValue element = list.get(i);
    if (element.isTensor()) list.set(i, view(element.toTensor()));
  }
  return list;
}

c10::Storage LayoutCall::view_storage(const c10::Storage& device) {
  for (const auto& [known, cpu] : storages_) {
    if (known.unsafeGetStorageImpl() == device.unsafeGetStorageImpl()) return cpu;
  }
  storages_.emplace_back(device, cpu_view(device));
  return storages_.back().second;
}

at::Tensor LayoutCall::view(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const bool on_host = tensor.is_cpu() && (takes_host_tensors_ || tensor.dim() == 0);
  TORCH_CHECK(tensor.device() == device_ || on_host, "Expected all tensors to be on the same device, but found at least two devices, ",
              device_, " and ", tensor.device(), "! (when calling ", op_.operator_name(), ")");
  if (on_host) return tensor;
  if (keeps_arguments_ && tensor.dim() == 1 && !tensor.is_quantized()) return tensor.cpu();
  for (const auto& known : known_) {
    if (known.device.is_same(tensor)) return known.cpu;
  }
  at::Tensor cpu;
  const void* data = nullptr;
  if (tensor.is_quantized()) {
    cpu = at::detail::make_tensor<at::QTensorImpl>(view_storage(tensor.storage()), DispatchKeySet(DispatchKey::QuantizedCPU),
                                                   tensor.dtype(), quantized(tensor)->quantizer());
    cpu.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  } else if (tensor.layout() == at::kStrided && !tensor.is_nested()) {
    cpu = cpu_view(view_storage(tensor.storage()), TensorMeta::of(tensor, tensor.storage_offset()));
    data = cpu.storage().data();
  } else {
    cpu = convert_parts(tensor, c10::Device(c10::DeviceType::CPU), [this](const at::Tensor& part) { return view(part); });
  }
  if (TensorMeta::needs_gradient(tensor)) cpu.set_requires_grad(true);
  Known known{tensor, cpu, {}, data};
  auto parts = parts_of(cpu);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].defined()) known.parts[i] = parts[i].getIntrusivePtr();
  }
  known_.push_back(std::move(known));
  return cpu;
}

/// In-place and out= calls replace the parts of a sparse tensor, or resize a strided one.
void LayoutCall::adopt_writes() {
  for (size_t k = 0; k < known_.size(); ++k) {
    const at::Tensor device = known_[k].device, cpu = known_[k].cpu;
    if (is_coo(device)) {
      coo(device)->raw_resize_(coo(cpu)->sparse_dim(), coo(cpu)->dense_dim(), cpu.sizes());
      auto parts = parts_of(cpu);
      if (parts[0].unsafeGetTensorImpl() != known_[k].parts[0].get() || parts[1].unsafeGetTensorImpl() != known_[k].parts[1].get()) {
        coo(device)->set_indices_and_values_unsafe(adopt(parts[0]), adopt(parts[1]));
      }
      coo(device)->set_coalesced(coo(cpu)->coalesced());
    } else if (is_compressed(device)) {
      auto parts = parts_of(cpu);
      bool replaced = false;
      for (size_t i = 0; i < 3; ++i) replaced |= parts[i].unsafeGetTensorImpl() != known_[k].parts[i].get();
      if (replaced || device.sizes() != cpu.sizes()) {
        compressed(device)->set_member_tensors(adopt(parts[0]), adopt(parts[1]), adopt(parts[2]), cpu.sizes());
      }
    } else if (device.layout() == at::kStrided && !device.is_nested() && !device.is_quantized()) {
      if (cpu.storage().data() != known_[k].data) {
        device.storage().set_data_ptr_noswap(adopt_memory(*cpu.storage().unsafeGetStorageImpl(), stream_, arena()));
        device.storage().set_nbytes(cpu.storage().nbytes());
      }
      if (cpu.sizes() != device.sizes() || cpu.strides() != device.strides() || cpu.storage_offset() != device.storage_offset()) {
        device.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
      }
    }
  }
}

c10::IValue LayoutCall::adopt_value(const c10::IValue& value) {
  if (value.isTensor()) return adopt(value.toTensor());
  if (value.isDevice()) return value.toDevice().is_cpu() ? c10::IValue(device_) : value;
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const auto& element : value.toListRef()) list.push_back(adopt(element.toTensor()));
  return list;
}

c10::Storage LayoutCall::adopt_storage(const c10::Storage& cpu) {
  for (const auto& [device, known] : storages_) {
    if (known.unsafeGetStorageImpl() == cpu.unsafeGetStorageImpl()) return device;
  }
  const size_t bytes = cpu.nbytes();
  c10::Storage device(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            adopt_memory(*cpu.unsafeGetStorageImpl(), stream_, arena()),
                                                            &NeuronAllocator::get(), true));
  storages_.emplace_back(device, cpu);
  return device;
}

at::Tensor LayoutCall::adopt(const at::Tensor& cpu) {
  if (!cpu.defined() || !cpu.is_cpu()) return cpu;
  for (const auto& known : known_) {
    if (known.cpu.is_same(cpu)) return known.device;
  }
  if (results_on_host_) return cpu;
  if (cpu.is_quantized()) {
    auto made = at::detail::make_tensor<at::QTensorImpl>(adopt_storage(cpu.storage()), DispatchKeySet(DispatchKey::QuantizedPrivateUse1),
                                                         cpu.dtype(), quantized(cpu)->quantizer());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    return made;
  }
  if (cpu.layout() == at::kStrided && !cpu.is_nested()) {
    return make_device_tensor(adopt_storage(cpu.storage()), TensorMeta::of(cpu, cpu.storage_offset()), cpu.storage_offset());
  }
  return convert_parts(cpu, device_, [this](const at::Tensor& part) { return adopt(part); });
}

}  // namespace

void run_layout_call(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) { LayoutCall(op, stream).run(stack); }

}  // namespace neuron
