// One call of the c10d backend on its way to operations: what its tensors are as plain memory.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/distributed/process_group.h"

namespace neuron::distributed {

struct ProcessGroupNeuron::Call {
  explicit Call(c10d::OpType type, std::chrono::milliseconds timeout = c10d::kUnsetTimeout) : type(type), timeout(timeout) {}

  // Each makes sure that a tensor is dense, in row-major order, and of a neuron device, and keeps it until the operations are done. It
  // gives the tensor on whose memory the operations work: of the host, where the device's must be staged.

  /// To be read.
  at::Tensor input(const at::Tensor& tensor);
  /// To be written: one that is not dense is written in the end, see put_back().
  at::Tensor output(const at::Tensor& tensor);
  /// Both.
  at::Tensor inout(const at::Tensor& tensor);

  c10d::OpType type;
  std::chrono::milliseconds timeout;
  int device = -1;
  Dtype dtype = Dtype::bytes;
  std::string dtype_name;
  bool blocks_host = false;
  std::vector<CollectiveCall> collectives;
  Tensors kept;
  Tensors outputs;           ///< of the Work, the user's own
  Tensors copy_back, dense;  ///< the user's tensors that are not dense, and where their values arrive
  std::vector<StagedCopy> to_host, to_device;
  std::optional<Buffer> message;  ///< of send and recv
  int peer = -1;
  int64_t tag = 0;
  Transfer transfer;            ///< the same call on another backend
  std::function<void()> after;  ///< of the transfer

 private:
  void check(const at::Tensor& tensor);
  at::Tensor target_of(const at::Tensor& tensor);
  at::Tensor place_of(const at::Tensor& tensor, bool read, bool written);
};

/// The memory of a dense tensor, whole or elements [begin, begin + count).
Buffer buffer_of(const at::Tensor& tensor);
Buffer buffer_of(const at::Tensor& tensor, int64_t begin, int64_t count);

/// A CPU tensor on the memory that operations work on.
at::Tensor host_view(const at::Tensor& tensor);

/// Queues the copies into tensors that are not dense behind `operations`, on a stream of the group; the point at which they are done.
StreamPoint put_back(const std::vector<at::Tensor>& dense, const std::vector<at::Tensor>& tensors, Stream& stream,
                     const std::vector<std::shared_ptr<Operation>>& operations);

Dtype dtype_of(at::ScalarType type);

/// The reduction that `op` names for `dtype`, and its factor. Throws c10::Error when there is none.
std::pair<Reduction, double> reduction_of(const c10d::ReduceOp& op, at::ScalarType dtype);

}  // namespace neuron::distributed
