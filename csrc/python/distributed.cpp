// torch_neuronx/distributed: the c10d backend, and the flight recorder.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>

#include "csrc/distributed/process_group.h"
#include "csrc/python/bindings.h"

namespace {

using neuron::distributed::FlightRecord;
using neuron::distributed::ProcessGroupNeuron;
using Options = c10d::Backend::Options;

c10::intrusive_ptr<ProcessGroupNeuron> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout, std::string name, std::vector<uint64_t> global_ranks,
                                                    ProcessGroupNeuron::MakeTransport transport, ProcessGroupNeuron::FirstUse first_use) {
  auto options = c10::make_intrusive<Options>("neuron", timeout);
  options->group_name = std::move(name);
  options->global_ranks_in_group = std::move(global_ranks);
  py::gil_scoped_release without_gil;
  return c10::make_intrusive<ProcessGroupNeuron>(store, rank, size, std::move(options), std::move(transport), std::move(first_use));
}

bool on_one_host(ProcessGroupNeuron& group) {
  py::gil_scoped_release without_gil;
  return group.on_one_host();
}

double seconds(FlightRecord::Time time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

py::list flight_records() {
  py::list list;
  for (const auto& record : neuron::distributed::flight_records()) {
    py::dict one;
    one["id"] = record.id;
    one["group"] = record.group;
    one["sequence"] = record.sequence;
    one["operation"] = record.operation;
    one["dtype"] = record.dtype;
    one["bytes"] = record.bytes;
    one["peer"] = record.peer >= 0 ? py::object(py::int_(record.peer)) : py::none();
    one["site"] = record.site;
    one["state"] = neuron::distributed::name_of(record.state);
    one["scheduled"] = seconds(record.scheduled);
    one["started"] = record.started == FlightRecord::Time() ? py::object(py::none()) : py::object(py::float_(seconds(record.started)));
    one["ended"] = record.ended == FlightRecord::Time() ? py::object(py::none()) : py::object(py::float_(seconds(record.ended)));
    list.append(std::move(one));
  }
  return list;
}

}  // namespace

void bind_rpc(py::module_& m);  // rpc.cpp: its headers take long to compile

void bind_distributed(py::module_& m) {
  using NeuronOptions = ProcessGroupNeuron::NeuronOptions;
  py::class_<NeuronOptions, Options, c10::intrusive_ptr<NeuronOptions>>(m, "ProcessGroupNeuronOptions")
      .def("__deepcopy__", [](const NeuronOptions& options, const py::dict&) { return c10::make_intrusive<NeuronOptions>(options); });
  py::class_<ProcessGroupNeuron, c10d::Backend, c10::intrusive_ptr<ProcessGroupNeuron>>(m, "ProcessGroupNeuron")
      .def_property_readonly("options", &ProcessGroupNeuron::options)
      .def("_set_default_timeout", &ProcessGroupNeuron::setTimeout, py::arg("timeout"), "A timedelta for what is called from now on.")
      .def(
          "perform_nocolor_split", [](ProcessGroupNeuron&, const py::object&) {}, "Ranks outside of a new group have nothing to do.")
      .def_property_readonly("on_one_host", torch::wrap_pybind_function(on_one_host),
                             "Whether the ranks share memory; else they go through Gloo. Connects.");
  m.def("_make_backend", torch::wrap_pybind_function(make_backend), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("name"), py::arg("global_ranks"), py::arg("transport"), py::arg("first_use"));
  m.def("_flight_records", torch::wrap_pybind_function(flight_records));
  bind_rpc(m);
}
