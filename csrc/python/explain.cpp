// torch_neuronx/explain.py: what the eager path did and why.
#include <Python.h>
#include <frameobject.h>

#include "csrc/aten/front_end.h"
#include "csrc/aten/window.h"
#include "csrc/aten/window_kernels.h"
#include "csrc/program/cache.h"
#include "csrc/program/explain.h"
#include "csrc/program/program_target.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/emulated/kernels/library.h"
#include "csrc/runtime/target.h"

namespace {

using neuron::Note;

/// "file.py:12" of the innermost Python frame outside of torch; empty on threads that run no Python.
std::string call_site() {
  if (!Py_IsInitialized()) return "";
  PyGILState_STATE gil = PyGILState_Ensure();
  std::string site;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    std::string here = std::string(file ? file : "?") + ":" + std::to_string(PyFrame_GetLineNumber(frame));
    bool inside = here.find("/torch/") != std::string::npos || here.find("/torch_neuronx/") != std::string::npos;
    Py_DECREF(code);
    if (!inside) site = here;
    PyFrameObject* outer = inside ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = outer;
  }
  PyGILState_Release(gil);
  return site;
}

py::dict program_counts(const neuron::ProgramCounters& counts) {
  py::dict all;
  all["launches"] = counts.launches.load();
  all["calls"] = counts.calls.load();
  all["fused_calls"] = counts.fused_calls.load();
  all["unwritten_bytes"] = counts.unwritten_bytes.load();
  return all;
}

py::dict counters_dict() {
  py::dict ops;
  for (const auto& op : neuron::op_counts()) {
    py::dict one;
    one["calls"] = op.hits + op.misses + op.inlined;
    one["hits"] = op.hits;
    one["misses"] = op.misses;
    one["inline"] = op.inlined;
    ops[op.name.c_str()] = one;
  }
  const auto& c = neuron::counters();
  py::dict bytes;
  bytes["h2d"] = c.bytes[static_cast<int>(neuron::CopyKind::host_to_device)].load();
  bytes["d2h"] = c.bytes[static_cast<int>(neuron::CopyKind::device_to_host)].load();
  bytes["d2d"] = c.bytes[static_cast<int>(neuron::CopyKind::device_to_device)].load();
  py::dict all;
  all["ops"] = ops;
  all["bytes"] = bytes;
  all["launches"] = c.launches.load();
  all["tile_launches"] = c.tile_launches.load();
  all["host_launches"] = c.host_launches.load();
  all["sync_count"] = c.syncs.load();
  py::dict fallback_ops;
  for (const auto& [op, calls] : neuron::fallback_counts()) fallback_ops[op.c_str()] = calls;
  all["fallback_ops"] = fallback_ops;
  all["fallback_count"] = c.fallbacks.load();
  all["compiled"] = program_counts(c.compiled);
  all["windows"] = program_counts(c.windows);
  all["closed_windows"] = c.closed_windows.load();
  all["window_kernels"] = neuron::window_kernel_launches().load();
  all["cached_programs"] = neuron::cached_programs();
  all["meta_mismatches"] = neuron::target_is_open() ? neuron::program_target().meta_mismatches() : 0;
  return all;
}

py::list notes_list(const std::vector<Note>& notes, const char* subject, bool with_reason) {
  py::list list;
  for (const auto& note : notes) {
    py::dict one;
    one[subject] = note.subject;
    if (with_reason) one["reason"] = note.reason;
    one["site"] = note.site;
    list.append(one);
  }
  return list;
}

py::dict explain_end() {
  std::vector<Note> misses, syncs, fallbacks;
  neuron::recording().end(&misses, &syncs, &fallbacks);
  py::dict all = counters_dict();
  all["misses"] = notes_list(misses, "op", true);
  all["syncs"] = notes_list(syncs, "why", false);
  all["fallbacks"] = notes_list(fallbacks, "op", true);
  return all;
}

}  // namespace

void bind_explain(py::module_& m) {
  neuron::python_call_site = call_site;
  m.def(
      "_explain_begin", [](bool sites) { neuron::recording().begin(sites); }, py::arg("record_sites"),
      "Starts noting misses, synchronisations and fallbacks; with the Python line of each when asked.");
  m.def("_explain_end", explain_end, "Stops noting and returns the notes together with _counters().");
  m.def("_counters", counters_dict, "Counts since the process started (ops: since _clear_op_counts()).");
  m.def("_set_adaptive_eager", neuron::set_adaptive_eager, py::arg("on"),
        "Switches Adaptive Eager; windows that are open close. Returns whether it was on.");
  m.def("_clear_op_counts", neuron::clear_op_counts);
  m.def("_clear_program_cache", neuron::clear_cache, "Drops all cached Programs; they come back at one inline call each.");
  m.def(
      "_tile_vectors",
      [] {
        py::list names;
        for (const auto& name : neuron::tiles::available_libraries()) names.append(name);
        return names;
      },
      "Vectors of the tile functions that this processor has, best first.");
  m.def("_register_front_end", neuron::register_front_end);
  m.def("_front_end_verdict", [](const std::string& name, const std::string& overload) {
    return neuron::front_end_verdict(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()));
  });
}
