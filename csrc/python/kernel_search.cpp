// torch_neuronx/nki/windows.py: kernels for windows of Adaptive Eager.
#include <pybind11/stl.h>

#include <array>
#include <tuple>

#include "csrc/aten/window_kernels.h"
#include "csrc/python/bindings.h"
#include "csrc/python/described.h"

namespace {

using Places = std::vector<std::pair<int, int64_t>>;  // storage, byte offset

std::vector<neuron::Operand> operands(const Places& places) {
  std::vector<neuron::Operand> made;
  for (const auto& [storage, offset] : places) made.push_back({storage, offset});
  return made;
}

class PythonSearch final : public neuron::KernelSearch {
 public:
  std::vector<neuron::WindowKernel> find(const neuron::Sequence& window, const std::vector<uint64_t>& scalars) override {
    std::vector<neuron::WindowKernel> found;
    if (!Py_IsInitialized()) return found;
    py::gil_scoped_acquire gil;
    auto answer = py::module_::import("torch_neuronx.nki.windows").attr("find")(neuron::describe(window), scalars);
    for (const auto& one : answer.cast<std::vector<std::tuple<uint64_t, std::vector<int>, Places, Places, std::vector<int>>>>()) {
      const auto& [id, calls, inputs, outputs, numbers] = one;
      found.push_back({id, calls, operands(inputs), operands(outputs), numbers});
    }
    return found;
  }
};

}  // namespace

void bind_kernel_search(py::module_& m) {
  static auto* const search = new PythonSearch;
  neuron::kernel_search = search;
  m.def(
      "_nki_search_windows_again", [] { neuron::kernel_search_version.fetch_add(1); },
      "Windows of Adaptive Eager are searched by torch_neuronx.nki.windows.find from now on, those that are known already too.");
}
