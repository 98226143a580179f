// torch_neuronx/ipc.py: tensors for other processes of this host.
#include "csrc/aten/ipc.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "csrc/python/bindings.h"

namespace {

std::pair<int, size_t> ipc_share(int device, uintptr_t address) {
  const auto range = neuron::share_storage(device, reinterpret_cast<const void*>(address));
  return {range.fd, range.offset};
}

}  // namespace

void bind_ipc(py::module_& m) {
  using torch::wrap_pybind_function;
  m.def("_ipc_share", wrap_pybind_function(ipc_share), py::arg("device"), py::arg("address"));
  m.def("_ipc_open", wrap_pybind_function(neuron::open_shared), py::arg("device"), py::arg("memory"), py::arg("offset"), py::arg("bytes"),
        py::arg("alive"));
}
