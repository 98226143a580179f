#include "csrc/runtime/trainium/infer.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "csrc/program/program_target.h"

namespace neuron::trainium {
namespace {

constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);

at::Tensor meta_tensor(c10::Storage storage, const TensorMeta& meta) {
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(std::move(storage), kMeta, c10::scalarTypeToTypeMeta(meta.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(meta.sizes, meta.strides, meta.offset);
  if (meta.wrapped_number) impl->set_wrapped_number(true);
  at::Tensor made(std::move(tensor));
  if (meta.conj) made._set_conj(true);
  if (meta.neg) made._set_neg(true);
  if (meta.needs_grad) impl->set_requires_grad(true);
  return made;
}

c10::Storage meta_storage(size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
                                               c10::GetAllocator(c10::kMeta), true);
}

/// One run of a call on meta tensors.
class Inference {
 public:
  Inference(Program& program, c10::ArrayRef<at::Tensor> tensors) : program_(program), call_(program.calls[0]), tensors_(tensors) {}

  bool run(std::string* why) {
    if (!call_.op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
      *why = "it has no meta kernel, so its results' shapes are not known before it runs";
      return false;
    }
    auto arguments = own_lists(call_);
    make_metas(arguments);
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    c10::impl::ForceDispatchKeyGuard keys(c10::default_included_set, keys_above_kernels());
    try {
      call_.op.redispatchBoxed(kMeta, &stack);
    } catch (const c10::NotImplementedError& error) {
      *why = error.what_without_backtrace();
      return false;
    }
    for (const auto& value : stack) {
      if (!note(value)) {
        *why = "its results' shapes do not follow from its arguments' (an out= argument would be resized)";
        return false;
      }
    }
    return true;
  }

 private:
  void make_metas(std::vector<c10::IValue>& arguments) {
    std::vector<c10::Storage> storages(call_.tensors.size());
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      const auto& slot = call_.tensors[i];
      if (slot.host_scalar) {
        metas_.push_back(tensors_[i]);  // PyTorch reads it as a number
      } else if (slot.same_as >= 0) {
        metas_.push_back(metas_[static_cast<size_t>(slot.same_as)]);
      } else {
        const auto leader = static_cast<size_t>(slot.leader);
        if (leader == i) storages[i] = meta_storage(tensors_[i].storage().nbytes());
        metas_.push_back(meta_tensor(storages[leader], TensorMeta::of(tensors_[i], tensors_[i].storage_offset())));
        if (slot.meta.wrapped_number) metas_.back().unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      put(arguments, slot.place, metas_.back());
    }
    for (const auto& payload : call_.payloads) {
      if (payload.place.element < 0)
        arguments[static_cast<size_t>(payload.place.arg)] = call_.arguments[static_cast<size_t>(payload.place.arg)];
    }
  }

  bool unchanged() const {
    for (size_t i = 0; i < metas_.size(); ++i) {
      if (call_.tensors[i].host_scalar) continue;
      if (metas_[i].sizes() != tensors_[i].sizes() || metas_[i].strides() != tensors_[i].strides()) return false;
    }
    return true;
  }

  bool note(const c10::IValue& value) {
    if (!unchanged()) return false;
    ReturnMeta returned;
    if (value.isTensor()) {
      returned.results.push_back(describe(value.toTensor()));
    } else if (value.isTensorList()) {
      returned.is_list = true;
      for (const auto& element : value.toListRef()) returned.results.push_back(describe(element.toTensor()));
    } else {
      ResultMeta constant;
      constant.kind = ResultMeta::Kind::constant;
      constant.value = value;
      returned.results.push_back(constant);
    }
    program_.returns.push_back(std::move(returned));
    return true;
  }

  ResultMeta describe(const at::Tensor& tensor) {
    ResultMeta result;
    if (!tensor.defined()) {
      result.kind = ResultMeta::Kind::undefined;
      return result;
    }
    for (size_t i = 0; i < metas_.size(); ++i) {
      if (!tensor.is_same(metas_[i])) continue;
      result.kind = ResultMeta::Kind::argument;
      result.source = static_cast<int>(i);
      return result;
    }
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    for (size_t i = 0; i < metas_.size(); ++i) {
      if (call_.tensors[i].host_scalar || metas_[i].storage().unsafeGetStorageImpl() != storage) continue;
      result.kind = ResultMeta::Kind::view;
      result.source = static_cast<int>(i);
      result.meta = TensorMeta::of(tensor, tensor.storage_offset() - metas_[i].storage_offset());
      return result;
    }
    result.meta = TensorMeta::of(tensor, tensor.storage_offset());
    result.source = fresh(storage, result.meta);
    return result;
  }

  int fresh(const c10::StorageImpl* storage, const TensorMeta& meta) {
    const auto known = std::find(fresh_.begin(), fresh_.end(), storage);
    const auto index = static_cast<int>(known - fresh_.begin());
    if (known == fresh_.end()) {
      fresh_.push_back(storage);
      program_.fresh.push_back({0, -1});
    }
    auto& bytes = program_.fresh[static_cast<size_t>(index)].bytes;
    bytes = std::max(bytes, meta.span_bytes());
    return index;
  }

  Program& program_;
  const OpCall& call_;
  c10::ArrayRef<at::Tensor> tensors_;
  std::vector<at::Tensor> metas_;
  std::vector<const c10::StorageImpl*> fresh_;
};

}  // namespace

bool infer_program(Program& program, c10::ArrayRef<at::Tensor> tensors, std::string* why) {
  program.returns.clear();
  program.fresh.clear();
  return Inference(program, tensors).run(why);
}

}  // namespace neuron::trainium
