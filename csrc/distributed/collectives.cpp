// The collectives of the c10d backend: each fills in a Call.
#include <numeric>

#include "csrc/aten/guard.h"
#include "csrc/distributed/call.h"
#include "csrc/distributed/engine.h"

namespace neuron::distributed {
namespace {

using Tensors = ProcessGroupNeuron::Tensors;
using c10d::OpType;

const at::Tensor& only(const Tensors& tensors, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, what, " takes one tensor per process, but got ", tensors.size());
  return tensors[0];
}

const Tensors& only(const std::vector<Tensors>& lists, const char* what) {
  TORCH_CHECK_VALUE(lists.size() == 1, what, " takes one list of tensors per process, but got ", lists.size());
  return lists[0];
}

void check_list(const Tensors& tensors, int size, const char* what) {
  TORCH_CHECK_VALUE(static_cast<int>(tensors.size()) == size, what, " needs one tensor per rank of the group (", size, "), but got ",
                    tensors.size());
}

void check_root(int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "Invalid root rank ", root, ": the group has ", size, " ranks");
}

void check_same_dtype(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "output tensor must have the same type as input tensor, but they are ",
                   a.scalar_type(), " and ", b.scalar_type());
}

/// A dense tensor as `parts` pieces of equal size.
std::vector<Buffer> pieces_of(const at::Tensor& tensor, int parts) {
  const int64_t count = tensor.numel() / parts;
  std::vector<Buffer> pieces;
  for (int part = 0; part < parts; ++part) pieces.push_back(buffer_of(tensor, part * count, count));
  return pieces;
}

std::vector<Buffer> buffers_of(const Tensors& tensors) {
  std::vector<Buffer> buffers;
  for (const auto& tensor : tensors) buffers.push_back(buffer_of(tensor));
  return buffers;
}

Tensors host_views(const Tensors& tensors) {
  Tensors views;
  for (const auto& tensor : tensors) views.push_back(host_view(tensor));
  return views;
}

void append(Tensors& list, const Tensors& more) { list.insert(list.end(), more.begin(), more.end()); }

/// The tensors of `tensors` in the form that `make` (Call::input, output or inout) gives.
template <class Make>
Tensors each(const Tensors& tensors, Make make) {
  Tensors made;
  for (const auto& tensor : tensors) made.push_back(make(tensor));
  return made;
}

CollectiveCall make(Kind kind, Dtype dtype, std::vector<Buffer> inputs, std::vector<Buffer> outputs) {
  CollectiveCall call;
  call.kind = kind;
  call.dtype = dtype;
  call.inputs = std::move(inputs);
  call.outputs = std::move(outputs);
  return call;
}

/// For lambdas, which would capture a const reference as const.
template <class T>
T mutable_copy(const T& value) {
  return value;
}

/// Gloo knows no average: it sums, and the results are divided afterwards.
c10d::ReduceOp without_average(const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::AVG ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
}

std::function<void()> divide(const c10d::ReduceOp& op, const Tensors& tensors, int size) {
  if (op.op_ != c10d::ReduceOp::AVG) return nullptr;
  return [views = host_views(tensors), size]() mutable {
    for (auto& view : views) at::isIntegralType(view.scalar_type(), true) ? view.div_(size, "trunc") : view.div_(size);
  };
}

}  // namespace

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_root(options.rootRank, size_);
  Call call(OpType::BROADCAST, options.timeout);
  const auto tensor = call.inout(only(tensors, "broadcast"));
  auto one = make(Kind::broadcast, call.dtype, {buffer_of(tensor)}, {buffer_of(tensor)});
  one.root = static_cast<int>(options.rootRank);
  one.count = tensor.nbytes();
  call.collectives.push_back(std::move(one));
  call.outputs = tensors;
  call.transfer = [options, view = host_view(tensor)](c10d::Backend& backend) {
    Tensors list{view};
    return backend.broadcast(list, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  c10d::AllreduceCoalescedOptions same;
  static_cast<c10d::AllreduceOptions&>(same) = options;
  only(tensors, "all_reduce");
  return allreduce_coalesced(tensors, same);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce needs a tensor");
  Call call(tensors.size() == 1 ? OpType::ALLREDUCE : OpType::ALLREDUCE_COALESCED, options.timeout);
  const auto dense = each(tensors, [&](const auto& tensor) { return call.inout(tensor); });
  for (const auto& tensor : dense) {
    auto one = make(Kind::allreduce, dtype_of(tensor.scalar_type()), {buffer_of(tensor)}, {buffer_of(tensor)});
    std::tie(one.reduction, one.factor) = reduction_of(options.reduceOp, tensor.scalar_type());
    one.count = tensor.nbytes();
    call.collectives.push_back(std::move(one));
  }
  call.outputs = tensors;
  call.after = divide(options.reduceOp, dense, size_);
  call.transfer = [options = mutable_copy(options), views = host_views(dense)](c10d::Backend& backend) mutable {
    options.reduceOp = without_average(options.reduceOp);
    return views.size() == 1 ? backend.allreduce(views, options) : backend.allreduce_coalesced(views, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_root(options.rootRank, size_);
  Call call(OpType::REDUCE, options.timeout);
  const bool root = options.rootRank == rank_;
  const auto tensor = root ? call.inout(only(tensors, "reduce")) : call.input(only(tensors, "reduce"));
  auto one = make(Kind::reduce, call.dtype, {buffer_of(tensor)}, {buffer_of(tensor)});
  std::tie(one.reduction, one.factor) = reduction_of(options.reduceOp, tensor.scalar_type());
  one.root = static_cast<int>(options.rootRank);
  one.count = tensor.nbytes();
  call.collectives.push_back(std::move(one));
  call.outputs = tensors;
  if (root) call.after = divide(options.reduceOp, {tensor}, size_);
  call.transfer = [options = mutable_copy(options), root, view = host_view(tensor)](c10d::Backend& backend) mutable {
    Tensors list{root ? view : view.clone()};  // Gloo uses the others' memory for partial sums
    options.reduceOp = without_average(options.reduceOp);
    return backend.reduce(list, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  only(inputs, "all_gather");
  check_list(only(outputs, "all_gather"), size_, "all_gather");
  std::vector<Tensors> by_rank;
  for (const auto& output : outputs[0]) by_rank.push_back({output});
  return allgather_coalesced(by_rank, inputs, options);
}

/// c10d's order: outputs[rank][i] is what `rank` gave as inputs[i].
ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                                    const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(), "all_gather needs a tensor");
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_, "all_gather_coalesced needs a list of outputs per rank of the group (",
                    size_, "), but got ", outputs.size());
  for (const auto& list : outputs)
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "all_gather_coalesced needs an output for each of the ", inputs.size(),
                      " inputs in each rank's list, but one has ", list.size());
  Call call(inputs.size() == 1 ? OpType::ALLGATHER : OpType::ALLGATHER_COALESCED, options.timeout);
  std::vector<Tensors> to_views(size_);
  Tensors from_views;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto input = call.input(inputs[i]);
    Tensors to;
    for (int rank = 0; rank < size_; ++rank) {
      check_same_dtype(outputs[rank][i], inputs[i]);
      to.push_back(call.output(outputs[rank][i]));
      to_views[rank].push_back(host_view(to.back()));
    }
    TORCH_CHECK_VALUE(to[rank_].numel() == input.numel(), "all_gather: output ", rank_, " has ", to[rank_].numel(),
                      " elements, but the input has ", input.numel());
    call.collectives.push_back(make(Kind::allgather, dtype_of(input.scalar_type()), {buffer_of(input)}, buffers_of(to)));
    from_views.push_back(host_view(input));
  }
  for (const auto& list : outputs) append(call.outputs, list);
  call.transfer = [options, to_views, from_views](c10d::Backend& backend) mutable {
    if (from_views.size() > 1) return backend.allgather_coalesced(to_views, from_views, options);
    std::vector<Tensors> one(1);
    for (auto& list : to_views) one[0].push_back(list[0]);
    return backend.allgather(one, from_views, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                                const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                                const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), "all_gather_into_tensor needs an output for each input");
  Call call(inputs.size() == 1 ? OpType::_ALLGATHER_BASE : OpType::COALESCED, options.timeout);
  Tensors to_views, from_views;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_same_dtype(outputs[i], inputs[i]);
    TORCH_CHECK_VALUE(outputs[i].numel() == inputs[i].numel() * size_,
                      "output tensor size must be equal to world_size times input tensor size, but they are ", outputs[i].numel(), " and ",
                      inputs[i].numel(), " with world size ", size_);
    const auto input = call.input(inputs[i]), output = call.output(outputs[i]);
    auto one = make(Kind::allgather, dtype_of(input.scalar_type()), {buffer_of(input)}, pieces_of(output, size_));
    one.count = input.nbytes();
    call.collectives.push_back(std::move(one));
    from_views.push_back(host_view(input));
    to_views.push_back(host_view(output));
  }
  call.outputs = outputs;
  call.transfer = [options, to_views, from_views](c10d::Backend& backend) mutable {
    if (from_views.size() == 1) return backend._allgather_base(to_views[0], from_views[0], options);
    return backend.allgather_into_tensor_coalesced(to_views, from_views, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  check_root(options.rootRank, size_);
  Call call(OpType::GATHER, options.timeout);
  const auto input = call.input(only(inputs, "gather"));
  Tensors to;
  if (options.rootRank == rank_) {
    check_list(only(outputs, "gather"), size_, "gather");
    for (const auto& output : outputs[0]) check_same_dtype(output, input);
    to = each(outputs[0], [&](const auto& tensor) { return call.output(tensor); });
    call.outputs = outputs[0];
  }
  auto one = make(Kind::gather, call.dtype, {buffer_of(input)}, buffers_of(to));
  one.root = static_cast<int>(options.rootRank);
  call.collectives.push_back(std::move(one));
  call.transfer = [options, to = host_views(to), from = host_view(input)](c10d::Backend& backend) {
    std::vector<Tensors> lists;
    if (!to.empty()) lists.push_back(to);
    Tensors list{from};
    return backend.gather(lists, list, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                        const c10d::ScatterOptions& options) {
  check_root(options.rootRank, size_);
  Call call(OpType::SCATTER, options.timeout);
  const auto output = call.output(only(outputs, "scatter"));
  Tensors from;
  if (options.rootRank == rank_) {
    check_list(only(inputs, "scatter"), size_, "scatter");
    for (const auto& input : inputs[0]) check_same_dtype(output, input);
    from = each(inputs[0], [&](const auto& tensor) { return call.input(tensor); });
  }
  auto one = make(Kind::scatter, call.dtype, buffers_of(from), {buffer_of(output)});
  one.root = static_cast<int>(options.rootRank);
  call.collectives.push_back(std::move(one));
  call.outputs = outputs;
  call.transfer = [options, to = host_view(output), from = host_views(from)](c10d::Backend& backend) {
    std::vector<Tensors> lists;
    if (!from.empty()) lists.push_back(from);
    Tensors list{to};
    return backend.scatter(list, lists, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                               const c10d::ReduceScatterOptions& options) {
  check_list(only(inputs, "reduce_scatter"), size_, "reduce_scatter");
  Call call(OpType::REDUCE_SCATTER, options.timeout);
  const auto output = call.output(only(outputs, "reduce_scatter"));
  for (const auto& input : inputs[0]) check_same_dtype(output, input);
  const auto from = each(inputs[0], [&](const auto& tensor) { return call.input(tensor); });
  auto one = make(Kind::reduce_scatter, call.dtype, buffers_of(from), {buffer_of(output)});
  std::tie(one.reduction, one.factor) = reduction_of(options.reduceOp, output.scalar_type());
  call.collectives.push_back(std::move(one));
  call.outputs = outputs;
  call.after = divide(options.reduceOp, {output}, size_);
  call.transfer = [options = mutable_copy(options), to = host_view(output), from = host_views(from)](c10d::Backend& backend) mutable {
    options.reduceOp = without_average(options.reduceOp);
    std::vector<Tensors> lists{from};
    Tensors list{to};
    return backend.reduce_scatter(list, lists, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                     const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                                const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), "reduce_scatter_tensor needs an output for each input");
  Call call(inputs.size() == 1 ? OpType::_REDUCE_SCATTER_BASE : OpType::REDUCE_SCATTER_TENSOR_COALESCED, options.timeout);
  Tensors to, to_views, from_views;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_same_dtype(outputs[i], inputs[i]);
    TORCH_CHECK_VALUE(inputs[i].numel() == outputs[i].numel() * size_,
                      "input tensor must be the same size as output size times world size, but they are ", inputs[i].numel(), " and ",
                      outputs[i].numel(), " with world size ", size_);
    const auto input = call.input(inputs[i]), output = call.output(outputs[i]);
    auto one = make(Kind::reduce_scatter, dtype_of(input.scalar_type()), pieces_of(input, size_), {buffer_of(output)});
    std::tie(one.reduction, one.factor) = reduction_of(options.reduceOp, output.scalar_type());
    one.count = input.nbytes();
    call.collectives.push_back(std::move(one));
    to.push_back(output);
    to_views.push_back(host_view(output));
    from_views.push_back(host_view(input));
  }
  call.outputs = outputs;
  call.after = divide(options.reduceOp, to, size_);
  call.transfer = [options = mutable_copy(options), to_views, from_views](c10d::Backend& backend) mutable {
    options.reduceOp = without_average(options.reduceOp);
    if (from_views.size() == 1) return backend._reduce_scatter_base(to_views[0], from_views[0], options);
    return backend.reduce_scatter_tensor_coalesced(to_views, from_views, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                                              std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  check_same_dtype(output, input);
  c10d::checkSplitSizes(input_splits, input, size_);
  c10d::checkSplitSizes(output_splits, output, size_);
  Call call(OpType::ALLTOALL_BASE, options.timeout);
  const auto from = call.input(input), to = call.output(output);
  const auto pieces = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    if (splits.empty()) return pieces_of(tensor, size_);
    const int64_t row = tensor.size(0) ? tensor.numel() / tensor.size(0) : 0;
    std::vector<Buffer> buffers;
    int64_t at = 0;
    for (const int64_t rows : splits) {
      buffers.push_back(buffer_of(tensor, at * row, rows * row));
      at += rows;
    }
    return buffers;
  };
  call.collectives.push_back(make(Kind::alltoall, call.dtype, pieces(from, input_splits), pieces(to, output_splits)));
  call.outputs = {output};
  call.transfer = [options, to = host_view(to), from = host_view(from), output_splits, input_splits](c10d::Backend& backend) mutable {
    return backend.alltoall_base(to, from, output_splits, input_splits, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  check_list(outputs, size_, "all_to_all");
  check_list(inputs, size_, "all_to_all");
  for (int rank = 0; rank < size_; ++rank) check_same_dtype(outputs[rank], inputs[rank]);
  Call call(OpType::ALLTOALL, options.timeout);
  const auto from = each(inputs, [&](const auto& tensor) { return call.input(tensor); });
  const auto to = each(outputs, [&](const auto& tensor) { return call.output(tensor); });
  call.collectives.push_back(make(Kind::alltoall, call.dtype, buffers_of(from), buffers_of(to)));
  call.outputs = outputs;
  call.transfer = [options, to = host_views(to), from = host_views(from)](c10d::Backend& backend) mutable {
    return backend.alltoall(to, from, options);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::message(Tensors& tensors, int peer, int tag, OpType type) {
  const char* what = type == OpType::SEND ? "send" : "recv";
  TORCH_CHECK_VALUE(type == OpType::RECVANYSOURCE || (peer >= 0 && peer < size_), what, ": invalid rank ", peer, ": the group has ", size_,
                    " ranks");
  TORCH_CHECK_VALUE(peer != rank_ || type == OpType::RECVANYSOURCE, what, ": rank ", rank_, " is this process itself");
  Call call(type);
  const auto tensor = type == OpType::SEND ? call.input(only(tensors, what)) : call.output(only(tensors, what));
  call.message = buffer_of(tensor);
  call.peer = peer;
  call.tag = tag;
  if (type != OpType::SEND) call.outputs = tensors;
  call.transfer = [view = host_view(tensor), peer, tag, type](c10d::Backend& backend) {
    Tensors list{view};
    if (type == OpType::SEND) return backend.send(list, peer, tag);
    return type == OpType::RECV ? backend.recv(list, peer, tag) : backend.recvAnysource(list, tag);
  };
  return submit(std::move(call));
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::send(Tensors& tensors, int to, int tag) { return message(tensors, to, tag, OpType::SEND); }
ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::recv(Tensors& tensors, int from, int tag) {
  return message(tensors, from, tag, OpType::RECV);
}
ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::recvAnysource(Tensors& tensors, int tag) {
  return message(tensors, -1, tag, OpType::RECVANYSOURCE);
}

ProcessGroupNeuron::WorkPtr ProcessGroupNeuron::barrier(const c10d::BarrierOptions& options) {
  Call call(OpType::BARRIER, options.timeout);
  const bool named = options.device && options.device->is_privateuseone() && options.device->has_index();
  call.device = named ? options.device->index() : !options.device_ids.empty() ? static_cast<int>(options.device_ids[0]) : current_device();
  check_device(call.device);
  call.blocks_host = true;
  call.collectives.push_back(make(Kind::barrier, Dtype::bytes, {}, {}));
  auto on_host = options;
  on_host.device = at::Device(at::kCPU);
  on_host.device_ids.clear();
  call.transfer = [on_host](c10d::Backend& backend) { return backend.barrier(on_host); };
  return submit(std::move(call));
}

void ProcessGroupNeuron::monitoredBarrier(const c10d::BarrierOptions& options, bool) {
  // A barrier's time-out names all ranks that have not come, whichever form was asked for.
  auto work = barrier(options);
  work->wait(options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout);
}

}  // namespace neuron::distributed
