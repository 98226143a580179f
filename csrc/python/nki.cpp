#include <c10/core/Storage.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/nki/matmul.h"
#include "csrc/nki/scan.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/memory.h"
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

/// Points a slot at the memory of `tensor` (on the CPU or on `neuron`), which the caller keeps alive; nullopt takes the memory away.
void point_slot(const at::Tensor& slot, const std::optional<at::Tensor>& tensor) {
  void* address = nullptr;
  if (tensor) {
    TORCH_CHECK(tensor->is_contiguous(), "point_slot: the tensor must be contiguous");
    TORCH_CHECK(static_cast<size_t>(tensor->nbytes()) >= slot.storage().nbytes(), "point_slot: the tensor is smaller than the slot");
    address = const_cast<void*>(tensor->const_data_ptr());
    TORCH_CHECK_NOT_IMPLEMENTED(!tensor->is_privateuseone() || neuron::target().device_info(tensor->device().index()).emulated,
                                "NKI kernels run on emulated NeuronCores only so far: move their tensors to the CPU, or set "
                                "TORCH_NEURONX_TARGET=emulated.");
    if (tensor->is_privateuseone()) address = neuron::host_address(address);
  }
  slot.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(address, c10::kCPU));
}

}  // namespace

void bind_nki(py::module_& m) {
  m.def("_nki_make_slot", torch::wrap_pybind_function(make_slot), py::arg("bytes"));
  m.def("_nki_point_slot", torch::wrap_pybind_function(point_slot), py::arg("slot"), py::arg("tensor"));
  m.def("_nki_has_tile_product", torch::wrap_pybind_function(neuron::nki::has_tile_product), py::arg("example"));
  m.def("_nki_packed_size", neuron::nki::packed_size, py::arg("k"), py::arg("n"));
  m.def("_nki_pack_moving", torch::wrap_pybind_function(neuron::nki::pack_moving), py::arg("moving"), py::arg("packed"));
  m.def("_nki_multiply", torch::wrap_pybind_function(neuron::nki::multiply), py::arg("dst"), py::arg("stationary"), py::arg("packed"),
        py::arg("accumulate"));
  m.def("_nki_scan", torch::wrap_pybind_function(neuron::nki::scan), py::arg("out"), py::arg("data0"), py::arg("data1"), py::arg("initial"),
        py::arg("op0"), py::arg("op1"), py::arg("reverse0"), py::arg("reverse1"));
}
