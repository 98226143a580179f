#include "csrc/runtime/trainium/host_call.h"

#include <ATen/native/CPUFallback.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/aten/device_tensor.h"
#include "csrc/program/explain.h"
#include "csrc/program/program_target.h"
#include "csrc/runtime/target.h"

namespace neuron::trainium {
namespace {

/// Offsets of copied parts are multiples of this, so that they are of every dtype's size.
constexpr int64_t kAlign = 16;

c10::Storage host_storage(size_t bytes) {
  auto* allocator = c10::GetCPUAllocator();
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator, true);
}

/// What the arguments show of one storage of the device, in bytes from its beginning.
struct Part {
  c10::Storage device;
  int64_t begin = 0, end = 0;
  bool written = false;
  c10::Storage host;

  char* first() const { return static_cast<char*>(const_cast<void*>(device.data())) + begin; }
  size_t bytes() const { return static_cast<size_t>(end - begin); }
  Memory& memory() const { return target().memory(device.device().index()); }
};

class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream)
      : op_(op), stack_(*stack), arity_(op.schema().arguments().size()), stream_(stream) {}

  bool strided() const {
    bool all = true;
    for (const auto& value : torch::jit::last(stack_, arity_)) {
      each(value, [&](const at::Tensor& tensor) { all = all && tensor.layout() == at::kStrided && !tensor.is_quantized(); });
    }
    return all;
  }

  void run() {
    const auto arguments = torch::jit::last(stack_, arity_);
    for (size_t i = 0; i < arity_; ++i) {
      const auto* alias = op_.schema().arguments()[i].alias_info();
      each(arguments[i], [&](const at::Tensor& tensor) { note(tensor, alias != nullptr && alias->isWrite()); });
    }
    for (auto& part : parts_) fetch(part);
    torch::jit::Stack results;
    for (const auto& value : arguments) results.push_back(on_host(value));
    {
      c10::impl::ForceDispatchKeyGuard keys(c10::default_included_set, keys_above_kernels());
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &results);
    }
    for (const auto& part : parts_)
      if (part.written) put_back(part);
    for (const auto& [device, host] : tensors_) follow(device, host);
    for (auto& value : results) value = on_device(value);
    torch::jit::drop(stack_, arity_);
    for (auto& value : results) stack_.push_back(std::move(value));
  }

 private:
  template <class Visit>
  static void each(const c10::IValue& value, Visit visit) {
    auto one = [&](const c10::IValue& element) {
      if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor());
    };
    if (value.isList())
      for (const c10::IValue& element : value.toListRef()) one(element);
    else
      one(value);
  }

  Part* find(const c10::StorageImpl* device) {
    auto found = std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.device.unsafeGetStorageImpl() == device; });
    return found == parts_.end() ? nullptr : &*found;
  }

  void note(const at::Tensor& tensor, bool written) {
    if (!tensor.is_privateuseone() || tensor.numel() == 0 || tensor._is_zerotensor()) return;
    const auto item = static_cast<int64_t>(tensor.element_size());
    const int64_t begin = tensor.storage_offset() * item / kAlign * kAlign;
    const auto end = static_cast<int64_t>(TensorMeta::of(tensor, tensor.storage_offset()).span_bytes());
    Part* part = find(tensor.storage().unsafeGetStorageImpl());
    if (part == nullptr) part = &parts_.emplace_back(Part{tensor.storage(), begin, end, false, {}});
    part->begin = std::min(part->begin, begin);
    part->end = std::max(part->end, end);
    part->written = part->written || written;
  }

  static void fetch(Part& part) {
    part.host = host_storage(part.bytes());
    part.memory().read(part.host.mutable_data(), part.first(), part.bytes());
    note_bytes(CopyKind::device_to_host, part.bytes());
  }

  static void put_back(const Part& part) {
    part.memory().write(part.first(), part.host.data(), std::min(part.bytes(), part.host.nbytes()));
    note_bytes(CopyKind::host_to_device, part.bytes());
  }

  at::Tensor on_host(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
    for (const auto& [device, host] : tensors_)
      if (device.is_same(tensor)) return host;
    auto meta = TensorMeta::of(tensor, 0);
    c10::Storage storage = host_storage(0);
    if (const Part* part = find(tensor.storage().unsafeGetStorageImpl()); part != nullptr && tensor.numel() > 0) {
      storage = part->host;
      meta.offset = tensor.storage_offset() - part->begin / static_cast<int64_t>(tensor.element_size());
    }
    return tensors_.emplace_back(tensor, make_stand_in(c10::DispatchKey::CPU, std::move(storage), meta)).second;
  }

  c10::IValue on_host(const c10::IValue& value) {
    if (value.isDevice() && value.toDevice().is_privateuseone()) return c10::Device(c10::DeviceType::CPU);
    if (value.isTensor()) return on_host(value.toTensor());
    if (!value.isList() || value.toListRef().empty()) return value;
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      const c10::IValue element = list.get(i);
      if (element.isTensor()) list.set(i, on_host(element.toTensor()));
    }
    return list;
  }

  /// A kernel may have resized an `out=` argument.
  static void follow(const at::Tensor& device, const at::Tensor& host) {
    if (host.sizes() == device.sizes() && host.strides() == device.strides()) return;
    const auto dense = host.contiguous();
    device.resize_(host.sizes());
    device.unsafeGetTensorImpl()->set_sizes_and_strides(dense.sizes(), dense.strides());
    if (dense.numel() > 0) write(device.storage(), device.storage_offset() * static_cast<int64_t>(device.element_size()), dense);
  }

  static void write(const c10::Storage& to, int64_t offset, const at::Tensor& dense) {
    auto* first = static_cast<char*>(const_cast<void*>(to.data())) + offset;
    target().memory(to.device().index()).write(first, dense.const_data_ptr(), dense.nbytes());
    note_bytes(CopyKind::host_to_device, dense.nbytes());
  }

  at::Tensor on_device(const at::Tensor& result) {
    if (!result.defined()) return result;
    for (const auto& [device, host] : tensors_)
      if (host.is_same(result)) return device;
    const c10::Device place(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(stream_.device));
    if (!result.is_cpu() || result.layout() != at::kStrided || result.is_quantized()) return result.to(place);
    const auto item = static_cast<int64_t>(result.element_size());
    const auto* storage = result.storage().unsafeGetStorageImpl();
    for (const auto& part : parts_) {
      if (part.host.unsafeGetStorageImpl() != storage) continue;
      const int64_t offset = result.storage_offset() + part.begin / item;
      return make_device_tensor(part.device, TensorMeta::of(result, offset), offset);
    }
    return make_device_tensor(fresh(result.storage(), place), TensorMeta::of(result, result.storage_offset()), result.storage_offset());
  }

  /// The bytes of a storage that the kernel has made, once for all results on it.
  c10::Storage fresh(const c10::Storage& host, c10::Device place) {
    for (const auto& [made, device] : fresh_)
      if (made.unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) return device;
    const size_t bytes = host.data() == nullptr ? 0 : host.nbytes();  // a ZeroTensor has a size and no memory
    auto device = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(place)).storage();
    if (bytes > 0) target().memory(place.index()).write(device.mutable_data(), host.data(), bytes);
    note_bytes(CopyKind::host_to_device, bytes);
    fresh_.emplace_back(host, device);
    return device;
  }

  c10::IValue on_device(const c10::IValue& value) {
    if (value.isTensor()) return on_device(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const c10::IValue& element : value.toListRef()) list.push_back(on_device(element.toTensor()));
    return list;
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const size_t arity_;
  Stream& stream_;
  std::vector<Part> parts_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;  // of the device, and what the kernel sees in its place
  std::vector<std::pair<c10::Storage, c10::Storage>> fresh_;
};

}  // namespace

void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) {
  HostCall call(op, stack, stream);
  if (!call.strided()) return call_on_host_any_layout(op, stack, stream);
  stream.synchronize();
  call.run();
}

void call_on_host_any_layout(const c10::OperatorHandle& op, torch::jit::Stack* stack, Stream& stream) {
  stream.synchronize();
  at::native::cpu_fallback(op, stack, /*error_on_views=*/false, c10::DispatchKey::CPU);
}

}  // namespace neuron::trainium
