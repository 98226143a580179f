#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "csrc/aten/guard.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/dropping.h"

namespace {

/// What torch.Stream's constructor takes: stream_id, device_index, device_type.
std::tuple<int64_t, int64_t, int64_t> packed(c10::Stream stream) {
  const auto data = stream.pack3();
  return {data.stream_id, data.device_index, static_cast<int64_t>(data.device_type)};
}

c10::Device device_at(int64_t index) {
  neuron::check_device(index);
  return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
}

c10::Stream unpacked(int64_t id, int64_t device_index, int64_t device_type) {
  TORCH_CHECK(device_type == static_cast<int64_t>(c10::kPrivateUse1), "Expected a stream of a neuron device, but got one of device type ",
              device_type, ".");
  const c10::Stream stream(c10::Stream::UNSAFE, device_at(device_index), id);
  neuron::check_stream(stream);
  return stream;
}

const c10::impl::DeviceGuardImplInterface& guard() { return *c10::impl::getDeviceGuardImpl(c10::kPrivateUse1); }

std::tuple<int64_t, int64_t, int64_t> current_stream(int64_t device) { return packed(guard().getStream(device_at(device))); }

std::tuple<int64_t, int64_t, int64_t> default_stream(int64_t device) { return packed(guard().getDefaultStream(device_at(device))); }

void check_stream(int64_t id, int64_t device_index, int64_t device_type) { unpacked(id, device_index, device_type); }

void set_stream(int64_t id, int64_t device_index, int64_t device_type) { guard().exchangeStream(unpacked(id, device_index, device_type)); }

int stream_priority(int64_t id, int64_t device_index, int64_t device_type) {
  return neuron::stream_of(unpacked(id, device_index, device_type))->priority;
}

/// `start` and `end` are event_ids, 0 for an event that was never recorded.
double elapsed_time(uintptr_t start, uintptr_t end) {
  TORCH_CHECK_VALUE(start && end, "Both events must be recorded before calculating elapsed time.");
  return guard().elapsedTime(reinterpret_cast<void*>(start), reinterpret_cast<void*>(end), -1);
}

}  // namespace

void bind_stream(py::module_& m) {
  const auto id = py::arg("stream_id"), index = py::arg("device_index"), type = py::arg("device_type");
  m.def("_current_stream", torch::wrap_pybind_function(current_stream), py::arg("device"));
  m.def("_default_stream", torch::wrap_pybind_function(default_stream), py::arg("device"));
  m.def("_set_stream", torch::wrap_pybind_function(set_stream), id, index, type, "Makes a stream its device's current one on this thread.");
  m.def("_check_stream", torch::wrap_pybind_function(check_stream), id, index, type, "Raises RuntimeError when there is no such stream.");
  m.def("_stream_priority", torch::wrap_pybind_function(stream_priority), id, index, type);
  m.def("_priority_range", [] { return std::make_tuple(neuron::kLowestPriority, neuron::kHighestPriority); });
  m.def("_drop_launches", [] { neuron::dropping_launches.store(true); }, "Queued launches are passed over from now on: the process ends.");
  m.def("_elapsed_time", torch::wrap_pybind_function(elapsed_time), py::arg("start"), py::arg("end"), "Milliseconds between two events.");
}
