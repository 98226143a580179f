// torch.distributed.rpc with tensors of `neuron`.
//
// PyTorch's agent maps devices of any kind (device_maps, its own streams, futures that know devices), but what it puts on the wire knows
// buffers of the CPU and of CUDA alone: tensorpipeDeserialize() asserts it. So this agent lets tensors travel through host memory. Behind
// the payload of such a message stands the device that each tensor is for, and the receiver moves it there before anybody sees it. All of
// that happens on the streams that PyTorch's agent gives to the message, so it is in stream order, as on CUDA.
#pragma once

#ifndef USE_TENSORPIPE
#define USE_TENSORPIPE  // as PyTorch's wheels are built
#endif
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace neuron::distributed {

class RpcAgentNeuron final : public torch::distributed::rpc::TensorPipeAgent {
 public:
  using Message = torch::distributed::rpc::Message;
  using DeviceMaps = std::unordered_map<std::string, torch::distributed::rpc::DeviceMap>;

  /// `answer` is given requests whose tensors are on this worker's devices.
  RpcAgentNeuron(const c10::intrusive_ptr<c10d::Store>& store, std::string name, torch::distributed::rpc::worker_id_t id, int world_size,
                 torch::distributed::rpc::TensorPipeRpcBackendOptions options, DeviceMaps reverse_device_maps,
                 std::vector<c10::Device> devices, std::unique_ptr<torch::distributed::rpc::RequestCallback> answer);
  ~RpcAgentNeuron() override;

  c10::intrusive_ptr<torch::distributed::rpc::JitFuture> send(const torch::distributed::rpc::WorkerInfo& to,
                                                              c10::intrusive_ptr<Message> message, float timeout_seconds,
                                                              const torch::distributed::rpc::DeviceMap& device_map) override;
  void shutdownImpl() override;

 protected:
  /// Requests and responses. `devices`, when not empty, has one for each tensor: where the receiver wants it.
  void pipeWrite(const std::shared_ptr<tensorpipe::Pipe>& pipe, const c10::intrusive_ptr<Message>& message,
                 std::vector<c10::Device>&& devices, std::vector<c10::Stream> streams,
                 std::function<void(const tensorpipe::Error&)> done) noexcept override;

 private:
  /// Waits for streams that have not come to a message's tensors yet, so that the caller of an RPC does not.
  c10::ThreadPool departures_;
};

}  // namespace neuron::distributed
