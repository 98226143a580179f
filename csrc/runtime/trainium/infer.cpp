#include "csrc/runtime/trainium/infer.h"

#include <ATen/ops/zeros.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "csrc/aten/device_tensor.h"
#include "csrc/program/program_target.h"

namespace neuron::trainium {
namespace {

using c10::DispatchKey;

c10::Storage meta_storage(size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
                                               c10::GetAllocator(c10::kMeta), true);
}

c10::Storage zeros(const at::Tensor& like) {
  return at::zeros({static_cast<int64_t>(like.storage().nbytes())}, at::TensorOptions().dtype(at::kByte).device(at::kCPU)).storage();
}

/// The layout that convolutions choose, which their meta kernel does not tell: channels last when an operand is.
void choose_layout(const OpCall& call, c10::ArrayRef<at::Tensor> metas, ResultMeta& result) {
  if (call.op.operator_name().name != "aten::convolution" || metas.size() < 2) return;
  for (const auto& operand : metas.slice(0, 2)) {
    const auto format = operand.suggest_memory_format();
    if (format == at::MemoryFormat::Contiguous) continue;
    const auto& sizes = result.meta.sizes;
    const auto strides =
        format == at::MemoryFormat::ChannelsLast ? c10::get_channels_last_strides_2d(sizes) : c10::get_channels_last_strides_3d(sizes);
    result.meta.strides.assign(strides.begin(), strides.end());
    return;
  }
}

/// One run of a call on meta tensors.
class Inference {
 public:
  Inference(Program& program, c10::ArrayRef<at::Tensor> tensors) : program_(program), call_(program.calls[0]), tensors_(tensors) {}

  bool run(std::string* why) {
    if (!call_.op.hasComputedKernelForDispatchKey(DispatchKey::Meta)) {
      if (returns_arguments()) return true;
      *why = "it has no meta kernel, so its results' shapes are not known before it runs";
      return false;
    }
    auto arguments = own_lists(call_);
    make_tensors(arguments, DispatchKey::Meta);
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    c10::impl::ForceDispatchKeyGuard keys(c10::default_included_set, keys_above_kernels());
    try {
      call_.op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::Meta), &stack);
    } catch (const c10::NotImplementedError& error) {
      if (returns_arguments()) return true;
      *why = error.what_without_backtrace();
      return false;
    } catch (const std::exception&) {
      refuse_as_cpu();
      throw;
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
  /// What the schema alone tells: an in-place call returns what it writes.
  bool returns_arguments() {
    const auto& schema = call_.op.schema();
    for (const auto& returned : schema.returns()) {
      const auto slot = std::find_if(call_.tensors.begin(), call_.tensors.end(), [&](const auto& one) {
        const auto* alias = schema.arguments()[static_cast<size_t>(one.place.arg)].alias_info();
        return one.place.element < 0 && alias && returned.alias_info() && alias->isWrite() && *alias == *returned.alias_info();
      });
      if (slot == call_.tensors.end()) {
        program_.returns.clear();
        return false;
      }
      ResultMeta result;
      result.kind = ResultMeta::Kind::argument;
      result.source = static_cast<int>(slot - call_.tensors.begin());
      program_.returns.push_back({false, {result}});
    }
    return true;
  }

  /// Python's meta kernels word their refusals in their own way: raises what the CPU's kernel says of such arguments, if it refuses too.
  void refuse_as_cpu() {
    metas_.clear();
    auto arguments = own_lists(call_);
    make_tensors(arguments, DispatchKey::CPU);
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    call_.op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), &stack);
  }

  /// Tensors like those of the call in their places: without memory, or zeros.
  void make_tensors(std::vector<c10::IValue>& arguments, DispatchKey key) {
    std::vector<c10::Storage> storages(call_.tensors.size());
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      const auto& slot = call_.tensors[i];
      if (slot.host_scalar) {
        metas_.push_back(tensors_[i]);  // PyTorch reads it as a number
      } else if (slot.same_as >= 0) {
        metas_.push_back(metas_[static_cast<size_t>(slot.same_as)]);
      } else {
        const auto leader = static_cast<size_t>(slot.leader);
        if (leader == i) storages[i] = key == DispatchKey::Meta ? meta_storage(tensors_[i].storage().nbytes()) : zeros(tensors_[i]);
        metas_.push_back(make_stand_in(key, storages[leader], TensorMeta::of(tensors_[i], tensors_[i].storage_offset())));
      }
      put(arguments, slot.place, metas_.back());
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
    choose_layout(call_, metas_, result);
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
