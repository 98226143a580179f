"""The Neuron Kernel Interface on emulated NeuronCores; also importable as ``nki`` where the vendor's package is not installed.

See docs/nki.md, and docs/dev/nki.md for how it works.
"""

from torch_neuronx.nki import numpy_dtypes
from torch_neuronx.nki.errors import NkiValidationError, NkiWarning
from torch_neuronx.nki.kernel import Kernel, jit, simulate
from torch_neuronx.nki.target import TARGETS, Target, current_target

numpy_dtypes.register()

cpu_simulate = simulate

__all__ = ["TARGETS", "Kernel", "NkiValidationError", "NkiWarning", "Target", "cpu_simulate", "current_target", "jit", "simulate"]
