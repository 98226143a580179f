// One bind_<topic>() for each Python module that the extension serves; each is defined in csrc/python/<topic>.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_device(py::module_& m);  ///< torch_neuronx/_device.py
void bind_stream(py::module_& m);  ///< torch_neuronx/streams.py
void bind_random(py::module_& m);  ///< torch_neuronx/random.py
