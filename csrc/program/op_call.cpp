#include "csrc/program/op_call.h"

#include <ATen/core/grad_mode.h>

namespace neuron {

bool TensorMeta::needs_gradient(const at::TensorBase& tensor) { return tensor.requires_grad() && at::GradMode::is_enabled(); }

TensorMeta TensorMeta::of(const at::TensorBase& tensor, int64_t offset) {
  TensorMeta meta;
  meta.dtype = tensor.scalar_type();
  meta.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  meta.strides.assign(tensor.strides().begin(), tensor.strides().end());
  meta.offset = offset;
  meta.conj = tensor.is_conj();
  meta.neg = tensor.is_neg();
  meta.needs_grad = needs_gradient(tensor);
  meta.zero = tensor._is_zerotensor();
  meta.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  return meta;
}

bool TensorMeta::matches(const at::TensorBase& tensor) const {
  return tensor.scalar_type() == dtype && tensor.sizes() == at::IntArrayRef(sizes) && tensor.strides() == at::IntArrayRef(strides) &&
         tensor.is_conj() == conj && tensor.is_neg() == neg && tensor._is_zerotensor() == zero;
}

size_t TensorMeta::span_bytes() const {
  int64_t last = offset;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return offset * c10::elementSize(dtype);
    last += (sizes[d] - 1) * strides[d];
  }
  return (last + 1) * c10::elementSize(dtype);
}

uint64_t Program::bytes() const {
  uint64_t sum = 0;
  for (const auto& call : calls) {
    for (const auto& slot : call.tensors) sum += c10::multiply_integers(slot.meta.sizes) * c10::elementSize(slot.meta.dtype);
  }
  for (const auto& storage : fresh) sum += storage.bytes;
  return sum;
}

void put(std::vector<c10::IValue>& arguments, const Place& where, c10::IValue value) {
  if (where.element < 0) {
    arguments[where.arg] = std::move(value);
  } else {
    arguments[where.arg].toList().set(where.element, std::move(value));
  }
}

std::vector<c10::IValue> own_lists(const OpCall& call) {
  auto arguments = call.arguments;
  auto own = [&](const Place& where) {
    if (where.element == 0 || (where.element > 0 && arguments[where.arg].is(call.arguments[where.arg]))) {
      arguments[where.arg] = arguments[where.arg].toList().copy();
    }
  };
  for (const auto& slot : call.tensors) own(slot.place);
  for (const auto& payload : call.payloads) own(payload.place);
  return arguments;
}

}  // namespace neuron
