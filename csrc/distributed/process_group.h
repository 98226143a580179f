// The c10d backend "neuron".
//
// What a call does on the host: checks its tensors, brings them into a form that can be moved as bytes (dense, no conjugate bit), makes one
// Operation per collective, submits them and returns a Work. How bytes move is the business of the operations.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/distributed/collective.h"
#include "csrc/distributed/communicator.h"
#include "csrc/distributed/roster.h"
#include "csrc/distributed/work.h"

namespace neuron::distributed {

class ProcessGroupNeuron final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  /// Makes a backend that moves CPU tensors between hosts, from a store, a rank and a size; called when the ranks turn out to be on
  /// several.
  using MakeTransport = std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Store>, int, int)>;
  /// Called with the group's name before its first operation.
  using FirstUse = std::function<void(const std::string&)>;

  /// c10d's, as a type that Python can copy: torch.distributed.split_group() does.
  struct NeuronOptions final : Options {
    explicit NeuronOptions(const Options& options) : Options(options) {}
  };

  /// Waits until all ranks have come, through `store`; what needs the device is left to the first operation.
  ProcessGroupNeuron(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options,
                     MakeTransport transport, FirstUse first_use);
  ~ProcessGroupNeuron() override;

  const std::string getBackendName() const override { return "neuron"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  const c10::intrusive_ptr<NeuronOptions>& options() const { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsTimeEstimation() const override { return false; }
  bool supportsShrinking() const override { return true; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return collectives_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void enableCollectivesTiming() override {}  // always on: see Work::getDuration
  c10d::ErrorType getError() override;

  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& without, int flags,
                                           const c10::intrusive_ptr<Options>& options) override;
  void abort() override;
  void shutdown() override;  ///< waits for what is pending, up to the group's time-out

  /// False when the ranks are on several hosts. Connects.
  bool on_one_host();

 private:
  struct Call;
  using Transfer = std::function<WorkPtr(c10d::Backend&)>;

  Communicator& communicator();
  void connect();
  void check_cores(const std::vector<ProcessFacts>& all) const;
  WorkPtr submit(Call call);
  std::shared_ptr<Operation> operation_for(CollectiveCall call);
  void prepare(Operation& operation, FlightRecord record, const Call& call, const std::vector<StreamPoint>& points);
  WorkPtr message(Tensors& tensors, int peer, int tag, c10d::OpType type);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<NeuronOptions> options_;
  const MakeTransport make_transport_;
  const FirstUse first_use_;
  SharedBlock block_;  // rank 0's, until connect() hands it on
  Roster roster_;
  std::once_flag connected_;
  std::shared_ptr<Communicator> communicator_;
  c10::intrusive_ptr<c10d::Backend> transport_;
  uint64_t collectives_ = 0, messages_ = 0;
  std::mutex submitting_;  // a group's collectives get their numbers in the order of the lane
  bool coalescing_ = false;
  std::vector<std::shared_ptr<Operation>> coalesced_;
  Tensors coalesced_outputs_;
  StreamPoint coalesced_tail_{nullptr, 0};
  int coalesced_device_ = 0;
};

}  // namespace neuron::distributed
