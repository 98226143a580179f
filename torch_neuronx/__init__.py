"""TorchNeuron: the PyTorch device ``neuron``, for AWS Trainium and, on any other machine, emulated NeuronCores.

``import torch`` is enough: PyTorch calls :func:`_autoload` through an entry point, and ``torch.neuron`` is this package. Everything
public is listed in ``torch_neuronx/_surface.py``.

Importing this package does not import PyTorch while PyTorch is going to load it anyway, so that ``python -m torch_neuronx.diagnose`` can
look at a broken installation.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_neuronx._surface import *  # noqa: F403

__version__ = "0.1.0"

_loaded = False
_WITHOUT_TORCH = ("config", "diagnose")  # submodules


def _autoload() -> None:
    """Makes the device known to PyTorch. Opens no device, prints nothing and never raises: see ``_register.py``."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from torch_neuronx import _register

    _register.register(sys.modules[__name__])


if not TYPE_CHECKING:  # for mypy the names are those of _surface, and _C is a module

    def __getattr__(name: str) -> Any:
        """Loads the backend at the first use of a public name; afterwards serves the attributes that change as the process runs."""
        if not _loaded and not name.startswith("_") and name not in _WITHOUT_TORCH:
            import torch  # noqa: F401  (whose own autoload may do the rest)

            _autoload()
            return getattr(sys.modules[__name__], name)
        if name in ("nki_op", "wrap_nki"):
            from torch_neuronx.nki import torch_op

            return getattr(torch_op, name)
        register = sys.modules.get(f"{__name__}._register")
        if register is not None and hasattr(register, "changing_attribute"):
            return register.changing_attribute(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_wanted_now() -> bool:
    """True when the importer expects the device to exist after ``import torch_neuronx``, and PyTorch will not see to that itself."""
    if "torch" in sys.modules:
        return True
    autoload_is_off = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0"
    return autoload_is_off and "torch_neuronx.diagnose" not in sys.orig_argv


if _is_wanted_now():
    import torch  # noqa: F401

    _autoload()
