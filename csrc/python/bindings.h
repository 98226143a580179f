// One bind_<topic>() for each Python module that the extension serves; each is defined in csrc/python/<topic>.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace py = pybind11;
