#include <c10/core/Storage.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/aten/front_end.h"
#include "csrc/aten/guard.h"
#include "csrc/nki/launches.h"
#include "csrc/nki/matmul.h"
#include "csrc/nki/scan.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/memory.h"
#include "csrc/runtime/settings.h"
#include "csrc/runtime/target.h"

namespace {

/// A byte tensor without memory of its own: views of it are made once, and read whatever it is pointed at.
at::Tensor make_slot(int64_t bytes) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), c10::DataPtr(nullptr, c10::kCPU), nullptr, false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
  return tensor;
}

/// Where the host finds the memory of `tensor` (on the CPU or on `neuron`, contiguous).
uintptr_t address_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "_nki_address: the tensor must be contiguous");
  void* address = const_cast<void*>(tensor.const_data_ptr());
  if (tensor.is_privateuseone()) {
    TORCH_CHECK_NOT_IMPLEMENTED(neuron::target().device_info(tensor.device().index()).emulated,
                                "NKI kernels run on emulated NeuronCores only so far: move their tensors to the CPU, or set "
                                "TORCH_NEURONX_TARGET=emulated.");
    address = neuron::host_address(address);
  }
  return reinterpret_cast<uintptr_t>(address);
}

/// Points a slot at memory of its size, which the caller keeps alive; 0 takes the memory away.
void point_slot(const at::Tensor& slot, uintptr_t address) {
  slot.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(reinterpret_cast<void*>(address), c10::kCPU));
}

/// Adds a launch to the calling thread's stream of `device`; its turn comes through next_launch().
void launch(int64_t device, uint64_t number) {
  neuron::check_device(device);
  auto& stream = *neuron::current_stream(static_cast<int>(device));
  neuron::nki::Launches::get().add(stream, number);
  if (neuron::settings().launch_blocking) stream.synchronize();
}

/// A kernel on a chip: an operator like any other, with a Program of its own.
std::vector<at::Tensor> launch_on_chip(const std::string& name, const std::vector<at::Tensor>& inputs, const std::vector<int64_t>& sizes) {
  static const neuron::LaunchedOp op("nki::kernel", "");
  torch::jit::Stack stack{name, c10::List<at::Tensor>(c10::ArrayRef<at::Tensor>(inputs)), sizes};
  op(&stack);
  return stack.at(0).toTensorVector();
}

py::tuple next_launch() {
  neuron::nki::Turn turn;
  {
    neuron::HostWaitScope wait;
    turn = neuron::nki::Launches::get().take();
  }
  return py::make_tuple(turn.number, turn.kernel, turn.addresses);
}

void launch_done(uint64_t number, const py::object& error) {
  std::exception_ptr kept;
  if (!error.is_none()) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    python_error raised;
    raised.persist();
    kept = std::make_exception_ptr(std::move(raised));
  }
  neuron::nki::Launches::get().done(number, kept);
}

}  // namespace

void bind_nki(py::module_& m) {
  m.def("_nki_make_slot", torch::wrap_pybind_function(make_slot), py::arg("bytes"));
  m.def("_nki_address", torch::wrap_pybind_function(address_of), py::arg("tensor"));
  m.def("_nki_point_slot", torch::wrap_pybind_function(point_slot), py::arg("slot"), py::arg("address"));
  m.def("_nki_launch", torch::wrap_pybind_function(launch), py::arg("device"), py::arg("number"));
  m.def("_nki_launch_on_chip", torch::wrap_pybind_function(launch_on_chip), py::arg("name"), py::arg("inputs"), py::arg("sizes"));
  m.def("_nki_next_launch", next_launch,
        "Waits for a launch whose turn has come: (number, kernel of a window or 0, addresses); number 0 when there will be none.");
  m.def("_nki_launch_done", torch::wrap_pybind_function(launch_done), py::arg("number"), py::arg("error"));
  m.def("_nki_close_launches", [] { neuron::nki::Launches::get().close(); });
  m.def("_nki_run_on_one_thread", neuron::nki::run_on_one_thread);
  m.def("_nki_has_tile_product", torch::wrap_pybind_function(neuron::nki::has_tile_product), py::arg("example"));
  m.def("_nki_packed_size", neuron::nki::packed_size, py::arg("k"), py::arg("n"));
  m.def("_nki_pack_moving", torch::wrap_pybind_function(neuron::nki::pack_moving), py::arg("moving"), py::arg("packed"));
  m.def("_nki_multiply", torch::wrap_pybind_function(neuron::nki::multiply), py::arg("dst"), py::arg("stationary"), py::arg("packed"),
        py::arg("accumulate"));
  m.def("_nki_scan", torch::wrap_pybind_function(neuron::nki::scan), py::arg("out"), py::arg("data0"), py::arg("data1"), py::arg("initial"),
        py::arg("op0"), py::arg("op1"), py::arg("reverse0"), py::arg("reverse1"));
}
