#include "csrc/distributed/call.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include "csrc/aten/guard.h"
#include "csrc/runtime/memory.h"

namespace neuron::distributed {

void ProcessGroupNeuron::Call::check(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), c10d::opTypeToString(type), ": a tensor is undefined");
  TORCH_CHECK_VALUE(tensor.is_privateuseone(), c10d::opTypeToString(type),
                    ": the backend neuron takes tensors of a neuron device, but got one on ", tensor.device(),
                    ". Move it with .to(\"neuron\"), or give the group a backend for that device too "
                    "(init_process_group(\"cpu:gloo,neuron:neuron\")).");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, c10d::opTypeToString(type),
                    ": the backend neuron takes dense tensors, but got one of layout ", tensor.layout());
  const int its_device = tensor.device().index();
  TORCH_CHECK_VALUE(device < 0 || device == its_device, c10d::opTypeToString(type),
                    ": tensors must be on one device, but are on neuron:", device, " and neuron:", its_device);
  device = its_device;
  if (dtype_name.empty()) {
    dtype = dtype_of(tensor.scalar_type());
    dtype_name = dtype == Dtype::bytes ? c10::toString(tensor.scalar_type()) : name_of(dtype);
  }
}

/// A dense tensor for the values of `tensor`, which is to be written: itself, or one that put_back() copies from.
at::Tensor ProcessGroupNeuron::Call::target_of(const at::Tensor& tensor) {
  check(tensor);
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor.detach();
  copy_back.push_back(tensor.detach());
  dense.push_back(at::empty(tensor.sizes(), tensor.options()));
  return dense.back();
}

/// A dense tensor in the form that operations work on, see Note [Staging].
at::Tensor ProcessGroupNeuron::Call::place_of(const at::Tensor& tensor, bool read, bool written) {
  kept.push_back(tensor);
  if (!is_staged(device)) return tensor;
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  const auto bytes = tensor.nbytes();
  if (bytes == 0) return at::empty(tensor.sizes(), options);
  char* const place = take_place(bytes);
  kept.push_back(at::from_blob(place, tensor.sizes(), [place, bytes](void*) { give_back_place(place, bytes); }, options));
  const StagedCopy copy{buffer_of(tensor).data, place, bytes, device};
  if (read) to_host.push_back(copy);
  if (written) to_device.push_back(copy);
  return kept.back();
}

at::Tensor ProcessGroupNeuron::Call::input(const at::Tensor& tensor) {
  check(tensor);
  return place_of(tensor.detach().resolve_conj().resolve_neg().contiguous(), true, false);
}

at::Tensor ProcessGroupNeuron::Call::output(const at::Tensor& tensor) { return place_of(target_of(tensor), false, true); }

at::Tensor ProcessGroupNeuron::Call::inout(const at::Tensor& tensor) {
  const auto target = target_of(tensor);
  if (!dense.empty() && dense.back().is_same(target)) target.copy_(tensor.detach());
  return place_of(target, true, true);
}

Buffer buffer_of(const at::Tensor& tensor) { return buffer_of(tensor, 0, tensor.numel()); }

Buffer buffer_of(const at::Tensor& tensor, int64_t begin, int64_t count) {
  const auto size = static_cast<int64_t>(tensor.element_size());
  auto* data = static_cast<char*>(const_cast<void*>(tensor.unsafeGetTensorImpl()->storage().data()));
  return {data ? data + (tensor.storage_offset() + begin) * size : nullptr, static_cast<size_t>(count * size),
          tensor.is_cpu() ? -1 : tensor.device().index()};
}

at::Tensor host_view(const at::Tensor& tensor) {
  const Buffer buffer = buffer_of(tensor);
  // Bytes that are only moved may have a dtype that the other backend does not know.
  const auto dtype = dtype_of(tensor.scalar_type()) == Dtype::bytes ? at::kByte : tensor.scalar_type();
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  if (buffer.bytes == 0) return at::empty(tensor.sizes(), options);
  return at::from_blob(host_address(buffer.data), dtype == at::kByte ? at::IntArrayRef{static_cast<int64_t>(buffer.bytes)} : tensor.sizes(),
                       options);
}

StreamPoint put_back(const std::vector<at::Tensor>& dense, const std::vector<at::Tensor>& tensors, Stream& stream,
                     const std::vector<std::shared_ptr<Operation>>& operations) {
  const c10::Stream side = to_c10(&stream);
  stream.wait_for(*current_stream(stream.device), current_stream(stream.device)->added());
  for (const auto& operation : operations) await(stream, operation);
  c10::StreamGuard guard(side);
  for (size_t i = 0; i < dense.size(); ++i) {
    const_cast<at::Tensor&>(tensors[i]).copy_(dense[i]);
    dense[i].record_stream(side);
    tensors[i].record_stream(side);
  }
  return {&stream, stream.added()};
}

Dtype dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return Dtype::u8;
    case at::kChar:
      return Dtype::i8;
    case at::kShort:
      return Dtype::i16;
    case at::kInt:
      return Dtype::i32;
    case at::kLong:
      return Dtype::i64;
    case at::kUInt16:
      return Dtype::u16;
    case at::kUInt32:
      return Dtype::u32;
    case at::kUInt64:
      return Dtype::u64;
    case at::kHalf:
      return Dtype::f16;
    case at::kBFloat16:
      return Dtype::bf16;
    case at::kFloat:
      return Dtype::f32;
    case at::kDouble:
      return Dtype::f64;
    case at::kComplexFloat:
      return Dtype::c64;
    case at::kComplexDouble:
      return Dtype::c128;
    case at::kBool:
      return Dtype::boolean;
    default:
      return Dtype::bytes;
  }
}

std::pair<Reduction, double> reduction_of(const c10d::ReduceOp& op, at::ScalarType dtype) {
  using Op = c10d::ReduceOp;
  constexpr std::pair<Op::RedOpType, Reduction> table[] = {
      {Op::SUM, Reduction::sum},     {Op::AVG, Reduction::average},  {Op::PRODUCT, Reduction::product},
      {Op::MIN, Reduction::minimum}, {Op::MAX, Reduction::maximum},  {Op::BAND, Reduction::bit_and},
      {Op::BOR, Reduction::bit_or},  {Op::BXOR, Reduction::bit_xor}, {Op::PREMUL_SUM, Reduction::premul_sum}};
  Reduction reduction = Reduction::none;
  for (const auto& [theirs, ours] : table)
    if (theirs == op.op_) reduction = ours;
  TORCH_CHECK_VALUE(reduction != Reduction::none, "Unknown ReduceOp ", static_cast<int>(op.op_));
  TORCH_CHECK_VALUE(
      supports(dtype_of(dtype), reduction), "ReduceOp.", name_of(reduction), " is not defined for ", dtype,
      " tensors. BAND, BOR and BXOR take integers and booleans; MIN and MAX no complex numbers; AVG and PREMUL_SUM no booleans; "
      "8-bit floats are moved, not reduced: convert them first.");
  double factor = 1;
  if (reduction == Reduction::premul_sum) {
    const auto* given = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK_VALUE(given, "ReduceOp.PREMUL_SUM comes without a factor: make it with torch.distributed._make_nccl_premul_sum(factor)");
    factor = given->tensor_factor.defined() ? given->tensor_factor.item<double>() : given->double_factor;
  }
  return {reduction, factor};
}

}  // namespace neuron::distributed
