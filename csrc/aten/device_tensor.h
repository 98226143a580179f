// Making tensors from metadata: the device's, and those that kernels of other keys see in their place.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/program/op_call.h"

namespace neuron {

/// A tensor of backend `key` on `storage`, as `meta` describes it but for `offset`: where in the storage its first element is, in elements.
inline at::Tensor make_tensor(c10::DispatchKey key, c10::Storage storage, const TensorMeta& meta, int64_t offset) {
  c10::DispatchKeySet keys(key);
  if (C10_UNLIKELY(meta.zero)) keys = keys.add(c10::DispatchKey::ZeroTensor);
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(std::move(storage), keys, c10::scalarTypeToTypeMeta(meta.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, offset);
  at::Tensor result(std::move(tensor));
  if (meta.conj) result._set_conj(true);
  if (meta.neg) result._set_neg(true);
  return result;
}

/// A tensor of the device.
inline at::Tensor make_device_tensor(c10::Storage storage, const TensorMeta& meta, int64_t offset) {
  return make_tensor(c10::DispatchKey::PrivateUse1, std::move(storage), meta, offset);
}

/// What a kernel of `key` (CPU, Meta) is given in the place of a tensor that `meta` describes, with the marks that kernels look at.
inline at::Tensor make_stand_in(c10::DispatchKey key, c10::Storage storage, const TensorMeta& meta) {
  auto result = make_tensor(key, std::move(storage), meta, meta.offset);
  if (meta.wrapped_number) result.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (meta.needs_grad) result.unsafeGetTensorImpl()->set_requires_grad(true);
  return result;
}

}  // namespace neuron
