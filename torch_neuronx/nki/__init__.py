"""The Neuron Kernel Interface on emulated NeuronCores; also importable as ``nki`` where the vendor's package is not installed.

See docs/nki.md, and docs/dev/nki.md for how it works.
"""

import importlib
from typing import Any

from torch_neuronx.nki import numpy_dtypes
from torch_neuronx.nki.errors import NkiValidationError, NkiWarning, unknown_name
from torch_neuronx.nki.kernel import Kernel, jit, simulate, simulate_ranks
from torch_neuronx.nki.target import TARGETS, Target, current_target

numpy_dtypes.register()

cpu_simulate = simulate
dtype = str  # the type of a dtype, for annotations


_WHEN_USED = {"benchmark": ("profiler", "benchmark"), "profile": ("profiler", "profile_decorator"), "replace": ("replacement", "replace")}


def __getattr__(name: str) -> Any:
    """What needs modules that kernels do not need is loaded when it is used."""
    if name in _WHEN_USED:
        module, attribute = _WHEN_USED[name]
        return getattr(importlib.import_module(f"torch_neuronx.nki.{module}"), attribute)
    raise unknown_name(__name__, name, "torch_neuronx.nki.isa", "torch_neuronx.nki.language")


__all__ = [
    "TARGETS",
    "Kernel",
    "NkiValidationError",
    "NkiWarning",
    "Target",
    "cpu_simulate",
    "current_target",
    "jit",
    "simulate",
    "simulate_ranks",
]
