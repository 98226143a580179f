#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/aten/generator.h"
#include "csrc/python/bindings.h"

void bind_random(py::module_& m) {
  m.def("_default_generator", torch::wrap_pybind_function([](int device) { return neuron::default_generator(device); }), py::arg("device"),
        "The device's own torch.Generator; the same object at each call.");
}
