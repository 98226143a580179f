// Programs as Python sees them: Note [Described Programs] in torch_neuronx/compiler/program.py.
#pragma once

#include <pybind11/pybind11.h>

#include "csrc/program/sequence.h"

namespace neuron {

/// With Python's lock.
pybind11::dict describe(const Sequence& sequence);

}  // namespace neuron
