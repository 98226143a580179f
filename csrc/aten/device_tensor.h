// Making tensors of the device from metadata.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/program/op_call.h"

namespace neuron {

/// A tensor of the device on `storage`, described by `meta`, whose first element is `offset` elements into the storage.
inline at::Tensor make_device_tensor(c10::Storage storage, const TensorMeta& meta, int64_t offset) {
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  if (C10_UNLIKELY(meta.zero)) keys = keys.add(c10::DispatchKey::ZeroTensor);
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(std::move(storage), keys, c10::scalarTypeToTypeMeta(meta.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  if (meta.sizes.size() != 1 || meta.sizes[0] != 0 || offset != 0) impl->set_sizes_and_strides(meta.sizes, meta.strides, offset);
  at::Tensor result(std::move(tensor));
  if (meta.conj) result._set_conj(true);
  if (meta.neg) result._set_neg(true);
  return result;
}

}  // namespace neuron
