// One bind_<topic>() for each Python module that the extension serves; each is defined in csrc/python/<topic>.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_device(py::module_& m);          ///< torch_neuronx/_device.py
void bind_stream(py::module_& m);          ///< torch_neuronx/streams.py
void bind_random(py::module_& m);          ///< torch_neuronx/random.py
void bind_memory(py::module_& m);          ///< torch_neuronx/memory.py
void bind_explain(py::module_& m);         ///< torch_neuronx/explain.py
void bind_compiled_graph(py::module_& m);  ///< torch_neuronx/compile/
void bind_ipc(py::module_& m);             ///< torch_neuronx/ipc.py
void bind_nki(py::module_& m);             ///< torch_neuronx/nki/
void bind_distributed(py::module_& m);     ///< torch_neuronx/distributed/
void bind_kernel_search(py::module_& m);   ///< torch_neuronx/nki/windows.py

void bind_program_compiler(py::module_& m);  ///< torch_neuronx/compiler/program.py
