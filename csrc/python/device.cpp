#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <ATen/Context.h>

#include "csrc/aten/guard.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/target.h"

namespace {

void open_device() {
  neuron::check_fork();  // PyTorch's once-flag was copied by the fork as well
  neuron::target();
  at::globalContext().lazyInitDevice(c10::kPrivateUse1);
}

/// NeuronCore versions, what get_device_capability() gives: trn2 has NeuronCore-v3, trn3 NeuronCore-v4.
int core_version(const neuron::DeviceInfo& info) { return info.generation == "trn3" ? 4 : 3; }

py::dict properties(int device) {
  neuron::check_device(device);
  const auto& info = neuron::target().device_info(device);
  py::dict facts;
  facts["name"] = info.generation + (info.emulated ? " (emulated)" : "");
  facts["product"] = info.name;
  facts["architecture"] = info.generation;
  facts["instance"] = info.instance;
  facts["total_memory"] = info.memory_bytes;
  facts["multi_processor_count"] = info.physical_cores;
  facts["chip"] = info.chip;
  facts["major"] = core_version(info);
  facts["minor"] = 0;
  facts["is_emulated"] = info.emulated;
  return facts;
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("_device_count", [] { return static_cast<int>(neuron::visible_devices()); }, "Devices of this process; opens and throws nothing.");
  m.def("_init", torch::wrap_pybind_function(open_device), "Opens the device. Raises RuntimeError with the cause and the remedy.");
  m.def("_is_initialized", [] { return neuron::target_is_open() && !neuron::in_bad_fork(); });
  m.def("_is_in_bad_fork", [] { return neuron::in_bad_fork(); });
  m.def("_current_device", [] { return neuron::current_device(); });
  m.def("_exchange_device", torch::wrap_pybind_function([](int device) { return neuron::exchange_device(device); }), py::arg("device"));
  m.def("_check_device", torch::wrap_pybind_function([](int64_t device) { neuron::check_device(device); }), py::arg("device"));
  m.def("_synchronize", torch::wrap_pybind_function([](int device) { neuron::synchronize_device(device); }), py::arg("device"),
        "Waits for every stream of the device, then raises the pending error, if any.");
  m.def("_device_properties", torch::wrap_pybind_function(properties), py::arg("device"));
}
