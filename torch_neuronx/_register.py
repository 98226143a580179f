"""What ``import torch`` runs: names the device, hangs ``torch.neuron`` up, and keeps a failure for the first use."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

DEVICE = "neuron"

# Modules that are also reachable as torch.neuron.<name>, as torch.cuda's are.
_SUBMODULES = ("amp", "memory", "random", "streams")

_failure: BaseException | None = None


def register(package: ModuleType) -> None:
    """Makes ``package`` the module of device ``neuron``. Never raises."""
    global _failure
    try:
        _require_extension(package)
        from torch_neuronx import _C

        _C.__getattr__ = _missing_from_the_extension
        from torch_neuronx import _comm, _exit, _nki_names, _surface, ipc
        from torch_neuronx.compile import hook
        from torch_neuronx.distributed import _backend

        _C._register_front_end()
        for name in _surface.__all__:
            setattr(package, name, getattr(_surface, name))
        _comm.offer()
        _exit.register()
        _nki_names.offer()
        ipc.register()
        hook.install()
        _be_strict()
        _choose_executor()
        _backend.register()
    except Exception as error:
        _failure = error
        _offer_the_failure(package)
    try:
        _tell_pytorch(package)
    except Exception as error:
        # Some other backend owns PyTorch's slot: torch.device("neuron") cannot exist, and using the package says why.
        _failure = _failure or error
        _offer_the_failure(package)


def _missing_from_the_extension(name: str) -> Any:
    """A name that the Python half uses and the compiled half lacks: a checkout that was updated and not built again."""
    raise AttributeError(
        f"torch_neuronx._C has no {name!r}: the compiled half is older than the Python half. Run `make build` in the checkout, or install "
        "the package again"
    )


def _be_strict() -> None:
    """TORCH_NEURONX_STRICT: what a chip would not run is an error from the first call on."""
    import os

    target = os.environ.get("TORCH_NEURONX_STRICT")
    if target:
        from torch_neuronx import readiness

        if target in readiness.TARGETS:  # the device's first use refuses others
            readiness.enforce(target)


def _choose_executor() -> None:
    """TORCH_NEURONX_EXECUTOR=xla: eager calls run by their lowering instead of the emulated device's kernels."""
    import os

    if os.environ.get("TORCH_NEURONX_EXECUTOR") == "xla":  # the device's first use refuses others
        from torch_neuronx.lowering import executor

        executor.install()


def _require_extension(package: ModuleType) -> None:
    """Says so when the compiled half is missing; the import's own words would blame a circular import."""
    from importlib.machinery import EXTENSION_SUFFIXES
    from pathlib import Path

    folder = Path(package.__path__[0])
    if not any((folder / f"_C{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        raise ImportError("its extension is not built. Run `make build` in the checkout, or install the package again")


def _tell_pytorch(package: ModuleType) -> None:
    torch.utils.rename_privateuse1_backend(DEVICE)
    torch._register_device_module(DEVICE, package)
    for name in _SUBMODULES:
        if f"torch_neuronx.{name}" in sys.modules:
            sys.modules[f"torch.{DEVICE}.{name}"] = sys.modules[f"torch_neuronx.{name}"]
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def changing_attribute(name: str) -> Any:
    """Attributes of ``torch.neuron`` whose value changes as the process runs."""
    if _failure is not None:
        raise AttributeError(f"torch.neuron.{name} is not there, because {_why()}") from _failure
    if name == "_initialized":
        from torch_neuronx import _device

        return _device.is_initialized()
    if name == "default_generators":
        from torch_neuronx import random

        return random.default_generators()
    from torch_neuronx._absent import message  # "from torch_neuronx import _absent" would ask here again

    raise AttributeError(message(name))


def _why() -> str:
    return f"TorchNeuron failed to load: {_failure}. Run `python -m torch_neuronx.diagnose` to see what to do."


def _offer_the_failure(package: ModuleType) -> None:
    """Gives ``package`` the few functions that PyTorch calls in scripts that do not use the device; all else raises the cause."""

    def _lazy_init() -> None:
        raise RuntimeError(f"Cannot use the neuron device, because {_why()}") from _failure

    def is_available() -> bool:
        return False

    def device_count() -> int:
        return 0

    def is_initialized() -> bool:
        return False

    def _is_in_bad_fork() -> bool:
        return False

    def manual_seed_all(seed: int) -> None:
        """There is no generator to seed; torch.manual_seed calls this in CPU-only scripts."""

    for function in (_lazy_init, is_available, device_count, is_initialized, _is_in_bad_fork, manual_seed_all):
        setattr(package, function.__name__, function)
    package.init = _lazy_init  # type: ignore[attr-defined]
    package._initialized = False  # type: ignore[attr-defined]
