#include "csrc/distributed/rpc_agent.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/rpc/request_callback.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>
#include <utility>

namespace neuron::distributed {

using namespace torch::distributed::rpc;

namespace {

// What stands behind a payload: for each tensor a byte, the index of its device or -1 for the CPU; their number; and a mark. Or the text of
// an error, its length, and another mark: a request whose tensors could not be read comes back to its sender as that error.
using Mark = std::array<char, 8>;
constexpr Mark kDevices{'n', 'e', 'u', 'r', 'o', 'n', ':', 'D'}, kError{'n', 'e', 'u', 'r', 'o', 'n', ':', 'E'};
constexpr size_t kTail = sizeof(uint32_t) + sizeof(Mark);

void append(std::vector<char>& payload, const std::vector<char>& what, const Mark& mark) {
  const auto count = static_cast<uint32_t>(what.size());
  const char* bytes = reinterpret_cast<const char*>(&count);
  payload.insert(payload.end(), what.begin(), what.end());
  payload.insert(payload.end(), bytes, bytes + sizeof(count));
  payload.insert(payload.end(), mark.begin(), mark.end());
}

/// Cuts off and gives what append() put there; false when there is nothing of the kind.
bool take(std::vector<char>& payload, const Mark& mark, std::vector<char>* what) {
  if (payload.size() < kTail || std::memcmp(payload.data() + payload.size() - sizeof(Mark), mark.data(), sizeof(Mark)) != 0) return false;
  uint32_t count = 0;
  std::memcpy(&count, payload.data() + payload.size() - kTail, sizeof(count));
  if (payload.size() - kTail < count) return false;
  const auto first = payload.end() - static_cast<ptrdiff_t>(kTail + count);
  what->assign(first, first + count);
  payload.erase(first, payload.end());
  return true;
}

/// A copy there, with the strides that it has here. Sparse ones are coalesced: PyTorch's futures that know devices refuse the others.
at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  if (tensor.device() == device) return tensor;
  const c10::InferenceMode no_graph(tensor.is_inference());
  const auto source = tensor.detach();
  at::Tensor copy;
  if (source.layout() == c10::kSparse) {
    copy = source.coalesce().to(device);
  } else if (source.layout() == c10::kStrided && !source.is_non_overlapping_and_dense() &&
             at::has_internal_overlap(source) != at::MemOverlap::Yes) {
    copy = at::empty_strided(source.sizes(), source.strides(), source.options().device(device)).copy_(source);
  } else {
    copy = source.to(device);
  }
  return copy.requires_grad_(tensor.requires_grad());
}

/// `message` as it travels. Waits for its tensors: those of a request are ready on `streams`; a response may come from a future without
/// events, as those of TorchScript are, so all of the device is waited for.
c10::intrusive_ptr<Message> departing(const Message& message, const std::vector<c10::Device>& devices,
                                      const std::vector<c10::Stream>& streams) {
  const c10::MultiStreamGuard guard(streams);
  std::vector<char> indices;
  for (const auto& device : devices) indices.push_back(device.is_cpu() ? static_cast<char>(-1) : static_cast<char>(device.index()));
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : message.tensors()) {
    const auto device = tensor.device();
    const auto on_device = [&](const c10::Stream& stream) { return stream.device() == device; };
    if (device.is_privateuseone() && (message.isResponse() || std::none_of(streams.begin(), streams.end(), on_device)))
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    tensors.push_back(moved(tensor, c10::kCPU));
  }
  auto payload = message.payload();
  append(payload, indices, kDevices);
  return c10::make_intrusive<Message>(std::move(payload), std::move(tensors), message.type(), message.id());
}

c10::intrusive_ptr<Message> failed(const Message& message, const std::string& error) {
  if (message.isResponse()) return createExceptionResponse(error, message.id());
  std::vector<char> payload;
  append(payload, {error.begin(), error.end()}, kError);
  return c10::make_intrusive<Message>(std::move(payload), std::vector<at::Tensor>(), message.type(), message.id());
}

/// Brings the tensors to where the sender wants them, and waits for that: TorchScript looks at a future's value without regard to streams.
/// Raises the sender's error, if the message is one.
void arrive(Message& message) {
  std::vector<char> found;
  if (take(message.payload(), kError, &found)) TORCH_CHECK(false, std::string(found.begin(), found.end()));
  if (!take(message.payload(), kDevices, &found)) return;
  auto& tensors = message.tensors();
  TORCH_CHECK(found.size() == tensors.size(), "An RPC message names ", found.size(), " devices for ", tensors.size(), " tensors");
  const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
  std::unordered_set<c10::Stream> copying;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (found[i] < 0) continue;
    const c10::Device device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(found[i]));
    tensors[i] = moved(tensors[i], device);
    copying.insert(guard.getStream(device));
  }
  for (const auto& stream : copying) stream.synchronize();
}

/// Distributed autograd asks for CUDA's streams when the node that gradients arrive at has a stream of any device. A node without input
/// metadata has none; nothing else reads that of the root of a backward pass.
void forget_stream(const Message& gradients) {
  using torch::distributed::autograd::DistAutogradContainer;
  const auto request = torch::distributed::autograd::PropagateGradientsReq::fromMessage(gradients);
  const auto& metadata = request->getAutogradMetadata();
  const auto context = DistAutogradContainer::getInstance().retrieveContext(metadata.autogradContextId);
  context->retrieveSendFunction(metadata.autogradMessageId)->clear_input_metadata();
}

class Arrivals final : public RequestCallback {
 public:
  explicit Arrivals(std::unique_ptr<RequestCallback> next) : next_(std::move(next)) {}

 protected:
  c10::intrusive_ptr<JitFuture> processMessage(Message& request, std::vector<c10::Stream> streams) const override {
    {
      const c10::MultiStreamGuard guard(streams);
      arrive(request);
    }
    if (request.type() == MessageType::BACKWARD_AUTOGRAD_REQ && !streams.empty()) return backward(request, std::move(streams));
    return (*next_)(request, std::move(streams));
  }

 private:
  /// Distributed autograd orders the streams of gradients on CUDA only, so here the host waits for all of the pass: an optimizer or another
  /// request may use the gradients on another stream.
  c10::intrusive_ptr<JitFuture> backward(Message& request, std::vector<c10::Stream> streams) const {
    forget_stream(request);
    return (*next_)(request, streams)
        ->then(
            [streams](JitFuture& future) {
              auto message = future.value().toCustomClass<Message>();
              const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
              for (const auto& stream : streams) guard.synchronizeDevice(stream.device_index());
              return withStorages(std::move(message));
            },
            at::AnyClassType::get());
  }

  const std::unique_ptr<RequestCallback> next_;
};

bool reached(const std::vector<c10::Stream>& streams) {
  return std::all_of(streams.begin(), streams.end(), [](const c10::Stream& stream) { return stream.query(); });
}

}  // namespace

RpcAgentNeuron::RpcAgentNeuron(const c10::intrusive_ptr<c10d::Store>& store, std::string name, worker_id_t id, int world_size,
                               TensorPipeRpcBackendOptions options, DeviceMaps reverse_device_maps, std::vector<c10::Device> devices,
                               std::unique_ptr<RequestCallback> answer)
    : TensorPipeAgent(store, std::move(name), id, world_size, options, std::move(reverse_device_maps), std::move(devices),
                      std::make_unique<Arrivals>(std::move(answer))),
      departures_(options.numWorkerThreads) {}

RpcAgentNeuron::~RpcAgentNeuron() { shutdown(); }

void RpcAgentNeuron::shutdownImpl() {
  departures_.waitWorkComplete();
  TensorPipeAgent::shutdownImpl();
}

c10::intrusive_ptr<JitFuture> RpcAgentNeuron::send(const WorkerInfo& to, c10::intrusive_ptr<Message> message, float timeout_seconds,
                                                   const DeviceMap& device_map) {
  auto response = TensorPipeAgent::send(to, std::move(message), timeout_seconds, device_map);
  return response->then(
      [](JitFuture& future) {
        auto message = future.value().toCustomClass<Message>();
        arrive(*message);
        return withStorages(std::move(message));
      },
      at::AnyClassType::get());
}

void RpcAgentNeuron::pipeWrite(const std::shared_ptr<tensorpipe::Pipe>& pipe, const c10::intrusive_ptr<Message>& message,
                               std::vector<c10::Device>&& devices, std::vector<c10::Stream> streams,
                               std::function<void(const tensorpipe::Error&)> done) noexcept {
  if (devices.empty()) return TensorPipeAgent::pipeWrite(pipe, message, {}, std::move(streams), std::move(done));
  auto depart = [this, pipe, message, devices, streams, done] {
    c10::intrusive_ptr<Message> host;
    try {
      host = departing(*message, devices, streams);
    } catch (const std::exception& error) {
      host = failed(*message, error.what());
    }
    TensorPipeAgent::pipeWrite(pipe, host, {}, {}, done);
  };
  if (reached(streams))
    depart();
  else
    departures_.run(std::move(depart));
}

}  // namespace neuron::distributed
