#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "csrc/aten/guard.h"
#include "csrc/python/bindings.h"

namespace {

/// What torch.Stream's constructor takes: stream_id, device_index, device_type.
std::tuple<int64_t, int64_t, int64_t> packed(c10::Stream stream) {
  const auto data = stream.pack3();
  return {data.stream_id, data.device_index, static_cast<int64_t>(data.device_type)};
}

c10::Device device_of(int index) {
  neuron::check_device(index);
  return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
}

const c10::impl::DeviceGuardImplInterface& guard() { return *c10::impl::getDeviceGuardImpl(c10::kPrivateUse1); }

}  // namespace

void bind_stream(py::module_& m) {
  m.def("_current_stream", torch::wrap_pybind_function([](int device) { return packed(guard().getStream(device_of(device))); }),
        py::arg("device"));
  m.def("_default_stream", torch::wrap_pybind_function([](int device) { return packed(guard().getDefaultStream(device_of(device))); }),
        py::arg("device"));
  m.def("_set_stream", torch::wrap_pybind_function([](int64_t id, int64_t device_index, int64_t device_type) {
          guard().exchangeStream(
              c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(device_index), static_cast<c10::DeviceType>(device_type)));
        }),
        py::arg("stream_id"), py::arg("device_index"), py::arg("device_type"), "Makes a stream its device's current one on this thread.");
  m.def(
      "_check_stream", torch::wrap_pybind_function([](int64_t id, int64_t device_index, int64_t device_type) {
        neuron::stream_of(c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(device_index), static_cast<c10::DeviceType>(device_type)));
      }),
      py::arg("stream_id"), py::arg("device_index"), py::arg("device_type"), "Raises RuntimeError when no such stream was given out.");
  m.def("_stream_priority", torch::wrap_pybind_function([](int64_t id, int64_t device_index, int64_t device_type) {
          return neuron::stream_of(
                     c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(device_index), static_cast<c10::DeviceType>(device_type)))
              ->priority;
        }),
        py::arg("stream_id"), py::arg("device_index"), py::arg("device_type"));
  m.def("_priority_range", [] { return std::make_tuple(neuron::kLowestPriority, neuron::kHighestPriority); });
}
