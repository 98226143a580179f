// torch_neuronx/compile: a Python function of tensors that runs as one launch once it has run for its key.
#include "csrc/aten/compiled_graph.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "csrc/aten/copy.h"
#include "csrc/python/bindings.h"

namespace {

using neuron::CompiledGraph;
using Values = CompiledGraph::Values;

/// Python values as IValues. Returns what cannot be one, or nothing.
std::string convert(PyObject* const* objects, size_t count, Values& values) {
  values.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* object = objects[i];
    if (THPVariable_Check(object)) {
      values.emplace_back(THPVariable_Unpack(object));
    } else if (object == Py_None) {
      values.emplace_back();
    } else if (PyBool_Check(object)) {
      values.emplace_back(object == Py_True);
    } else if (PyLong_Check(object)) {
      int overflow = 0;
      const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
      if (overflow != 0) return c10::str("value ", i, " is an integer of more than 64 bits");
      values.emplace_back(static_cast<int64_t>(number));
    } else if (PyFloat_Check(object)) {
      values.emplace_back(PyFloat_AS_DOUBLE(object));
    } else {
      return c10::str("value ", i, " is of type ", Py_TYPE(object)->tp_name);
    }
  }
  return "";
}

PyObject* wrap(c10::IValue value) {
  if (value.isTensor()) return THPVariable_Wrap(std::move(value).toTensor());
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isInt()) return PyLong_FromLongLong(value.toInt());
  Py_RETURN_NONE;
}

class PyCompiledGraph {
 public:
  PyCompiledGraph(py::function fn, std::string name, bool offsets_in_key, size_t max_programs)
      : fn_(std::move(fn)), graph_(std::move(name), offsets_in_key, max_programs) {}

  py::list call(const py::list& inputs) {
    Values values, results;
    std::string unreadable = convert(PySequence_Fast_ITEMS(inputs.ptr()), inputs.size(), values);
    auto run = graph_.start(values, std::move(unreadable), &results);
    if (run) {
      auto arguments = py::tuple(inputs);
      inputs.attr("clear")();
      return run_function(*run, arguments);
    }
    if (PyList_SetSlice(inputs.ptr(), 0, PyList_GET_SIZE(inputs.ptr()), nullptr) != 0) throw py::error_already_set();
    py::list list(results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      PyObject* item = nullptr;
      if (results[i].isTensor()) {
        // The same tensor again, or an input: one Python object each, which THPVariable_Wrap() sees to.
        item = wrap(results[i]);
      } else {
        item = wrap(std::move(results[i]));
      }
      if (!item) throw py::error_already_set();
      PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), item);
    }
    return list;
  }

  py::dict stats() const {
    const auto stats = graph_.stats();
    py::dict all;
    all["programs"] = stats.programs;
    all["hits"] = stats.hits;
    all["misses"] = stats.misses;
    all["evictions"] = stats.evictions;
    all["replays"] = stats.replays;
    all["fallbacks"] = stats.fallbacks;
    all["miss_reasons"] = py::cast(stats.miss_reasons);
    all["fallback_reasons"] = py::cast(stats.fallback_reasons);
    all["calls"] = stats.calls;
    all["steps"] = stats.steps;
    all["kernels"] = stats.kernels;
    all["groups"] = stats.groups;
    all["fused_calls"] = stats.fused_calls;
    all["temporary_bytes"] = stats.temporary_bytes;
    all["unwritten_bytes"] = stats.unwritten_bytes;
    return all;
  }

  const std::string& name() const { return graph_.name(); }

 private:
  py::list run_function(CompiledGraph::Run& run, const py::tuple& arguments) {
    py::list returned(fn_(*arguments));
    Values outputs;
    const bool known = convert(PySequence_Fast_ITEMS(returned.ptr()), returned.size(), outputs).empty();
    run.finish(known ? &outputs : nullptr);
    return returned;
  }

  const py::function fn_;
  CompiledGraph graph_;
};

}  // namespace

void bind_compiled_graph(py::module_& m) {
  py::class_<PyCompiledGraph, std::shared_ptr<PyCompiledGraph>>(
      m, "CompiledGraph",
      "A function of tensors that is one launch, without Python, from its second call "
      "with the same kind of inputs on.")
      .def(py::init<py::function, std::string, bool, size_t>(), py::arg("fn"), py::arg("name"), py::arg("offsets_in_key") = true,
           py::arg("max_programs") = 128,
           "fn(*inputs) returns a list or tuple of tensors (or None, ints, bools). offsets_in_key=False promises that it does not ask for "
           "an "
           "input's storage offset. The Programs of the max_programs keys used last are held.")
      .def("__call__", torch::wrap_pybind_function(&PyCompiledGraph::call), py::arg("inputs"),
           "Takes the inputs out of the list (tensors, ints, bools, floats, None) and returns a list.")
      .def("stats", &PyCompiledGraph::stats, "Counts since it was made; kernels, groups and bytes are those of the Program used last.")
      .def_property_readonly("name", &PyCompiledGraph::name);
  m.def("_copy_bytes", torch::wrap_pybind_function(&neuron::copy_bytes), py::arg("destination"), py::arg("source"),
        "Copies a dense tensor's bytes to the first ones of another dense tensor on its device, without a kernel.");
}
