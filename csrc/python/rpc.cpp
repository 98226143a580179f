// torch_neuronx/distributed/_rpc.py: the RPC agent.
#include "csrc/distributed/rpc_agent.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/rpc/request_callback_impl.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

namespace {

using namespace torch::distributed::rpc;
using neuron::distributed::RpcAgentNeuron;

void destroy_without_gil(RpcAgentNeuron* agent) {  // it joins threads that may be waiting for it
  const py::gil_scoped_release without_gil;
  delete agent;
}

std::shared_ptr<RpcAgentNeuron> make(const c10::intrusive_ptr<c10d::Store>& store, std::string name, worker_id_t id, int world_size,
                                     TensorPipeRpcBackendOptions options, RpcAgentNeuron::DeviceMaps reverse_device_maps,
                                     std::vector<c10::Device> devices) {
  const py::gil_scoped_release without_gil;
  return {new RpcAgentNeuron(store, std::move(name), id, world_size, std::move(options), std::move(reverse_device_maps), std::move(devices),
                             std::make_unique<RequestCallbackImpl>()),
          destroy_without_gil};
}

}  // namespace

void bind_rpc(py::module_& m);

void bind_rpc(py::module_& m) {
  // Its base class is bound when torch.distributed.rpc is imported; so this one cannot be at load.
  m.def("_bind_rpc_agent", [m] {
    py::class_<RpcAgentNeuron, TensorPipeAgent, std::shared_ptr<RpcAgentNeuron>>(m, "RpcAgentNeuron")
        .def(py::init(torch::wrap_pybind_function(make)), py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("world_size"),
             py::arg("options"), py::arg("reverse_device_maps"), py::arg("devices"));
  });
}
