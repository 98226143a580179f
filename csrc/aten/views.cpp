// Factories and metadata: kernels that allocate or describe, and run nothing.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "csrc/aten/allocator.h"
#include "csrc/aten/guard.h"
#include "csrc/aten/recorder.h"

namespace neuron {
namespace {

constexpr c10::DispatchKeySet kNeuron(c10::DispatchKey::PrivateUse1);

c10::Device device_or_current(std::optional<c10::Device> device) {
  if (device && device->has_index()) {
    check_device(device->index());
    return *device;
  }
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(current_device())};
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided, "Device neuron holds strided tensors only, not layout ",
                              *layout, ": keep this tensor on the CPU");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned, not tensors on device neuron");
}

const at::Tensor& fill_if_deterministic(const at::Tensor& tensor) {
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(const_cast<at::Tensor&>(tensor));
  }
  return tensor;
}

/// Tells a Recorder of memory that no launch made.
at::Tensor noted(at::Tensor made) {
  if (Recorder* recorder = Recorder::current()) [[unlikely]]
    recorder->made(made.storage());
  return made;
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  c10::DeviceGuard guard(device_or_current(device));
  return fill_if_deterministic(noted(at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &NeuronAllocator::get(), kNeuron,
                                                               c10::dtype_or_default(dtype), memory_format)));
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  c10::DeviceGuard guard(device_or_current(device));
  return fill_if_deterministic(noted(at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                                                       &NeuronAllocator::get(), kNeuron, c10::dtype_or_default(dtype))));
}

/// Zeros that have no memory: what forward-mode AD and some gradients stand in for "no contribution".
at::Tensor efficient_zero(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                          std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  auto place = device_or_current(device);
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto type = c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype));
  // The size that it would have: views are checked against it.
  auto bytes = at::detail::computeStorageNbytesContiguous(sizes, type.itemsize());
  c10::Storage nothing(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, place), &NeuronAllocator::get(), false);
  auto zero = at::detail::make_tensor<c10::TensorImpl>(std::move(nothing), kNeuron.add(c10::DispatchKey::ZeroTensor), type);
  zero.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return zero;
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  auto start = offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

/// Makes the storage large enough for what the tensor describes; contents stay.
void grow_storage(const at::Tensor& self) {
  if (self.numel() == 0) return;
  size_t needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.dtype().itemsize(), self.storage_offset());
  const auto& storage = self.storage();
  if (needed > storage.nbytes()) {
    c10::DeviceGuard guard(self.device());
    at::native::resize_bytes_nocuda(storage, needed);
  }
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat> memory_format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  size_t before = self.storage().nbytes();
  if (self.sizes() != sizes) impl->set_sizes_contiguous(sizes);
  if (memory_format) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *memory_format, " for resize_");
    impl->empty_tensor_restride(*memory_format);
  }
  grow_storage(self);
  if (C10_UNLIKELY(self.storage().nbytes() > before && at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(before));
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  int64_t start = offset.guard_int(__FILE__, __LINE__);
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  at::native::checkSetStorage(self, source, start, sizes, strides);
  auto* impl = self.unsafeGetTensorImpl();
  std::vector<int64_t> contiguous;
  if (strides.data() == nullptr || strides.size() != sizes.size()) {
    contiguous.assign(sizes.size(), 1);
    for (int d = static_cast<int>(sizes.size()) - 2; d >= 0; --d) contiguous[d] = contiguous[d + 1] * std::max<int64_t>(1, sizes[d + 1]);
    strides = contiguous;
  }
  impl->set_storage_offset(start);
  impl->set_sizes_and_strides(sizes, strides);
  grow_storage(self);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  int64_t elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, c10::SymIntArrayRef(c10::SymInt(elements)), {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(), source.sym_strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()), &NeuronAllocator::get(), true);
  return set_storage(self, std::move(nothing), 0, c10::SymIntArrayRef(c10::SymInt(0)), {});
}

/// A copy made at once. PyTorch's copy-on-write storages want the context of a DataPtr to be the data's address
/// (c10/core/impl/COW.cpp asserts it when the last owner writes), and ours is the allocator's block.
at::Tensor lazy_clone(const at::Tensor& self) {
  c10::DeviceGuard guard(self.device());
  const auto bytes = static_cast<int64_t>(self.storage().nbytes());
  auto options = at::TensorOptions(self.device()).dtype(at::kByte);
  auto source = at::empty({0}, options).set_(self.storage(), 0, {bytes}, {1});
  auto whole = at::empty({bytes}, options).copy_(source);
  auto clone = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(whole.storage()), self.key_set(), self.dtype());
  auto* impl = clone.unsafeGetTensorImpl();
  impl->set_storage_offset(self.storage_offset());
  impl->set_sizes_and_strides(self.sizes(), self.strides());
  return clone;
}

void record_stream(at::Tensor& self, c10::Stream stream) { NeuronAllocator::get().recordStream(self.storage().data_ptr(), stream); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zero));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("_lazy_clone", TORCH_FN(lazy_clone));
  m.impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace neuron
