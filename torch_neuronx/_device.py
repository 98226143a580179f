"""Which NeuronCores there are, which one is current, and waiting for it."""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import Any, NamedTuple

from torch_neuronx import _C
from torch_neuronx._utils import DEVICE, _get_device_index


def is_available() -> bool:
    """True when there is at least one NeuronCore, real or emulated. Opens nothing and never raises."""
    return device_count() > 0


def device_count() -> int:
    """NeuronCores that this process may use. Opens nothing and never raises; 0 when a setting is wrong, which the first use explains."""
    return int(_C._device_count())


def is_initialized() -> bool:
    """True once the device was opened, which its first use does."""
    return bool(_C._is_initialized())


def init() -> None:
    """Opens the device now. Raises RuntimeError with the cause and the remedy when that is impossible; does nothing when it is open."""
    _refuse_bad_modes()
    _C._init()
    _report_settings()


def _lazy_init() -> None:
    """Called by PyTorch before it makes anything on the device."""
    init()


def _refuse_bad_modes() -> None:
    """The settings that Python reads when it loads, where nothing may raise (see _register.py); C++ refuses its own."""
    for name in ("TORCH_NEURONX_STRICT", "TORCH_NEURONX_EXECUTOR"):
        if os.environ.get(name):
            from torch_neuronx import config

            sentence = config.refusal(name, os.environ)
            if sentence:
                raise RuntimeError(sentence)


@cache
def _report_settings() -> None:
    """Warns once of environment variables that look like ours and are not: a misspelt setting must not be ignored silently."""
    from torch_neuronx import config

    for sentence in config.unknown_names(os.environ):
        warnings.warn(f"<TorchNeuron/Settings> {sentence} `python -m torch_neuronx.diagnose` checks them all.", stacklevel=2)


def _is_in_bad_fork() -> bool:
    """True in a process forked from one that had used the device."""
    return bool(_C._is_in_bad_fork())


def _is_compiled() -> bool:
    return True


def current_device() -> int:
    """Index of the calling thread's device."""
    return int(_C._current_device())


def set_device(device: Any) -> None:
    """Makes ``device`` the calling thread's device. A negative index changes nothing. Raises RuntimeError when there is no such device."""
    index = _get_device_index(device)
    if index >= 0:
        _C._check_device(index)
        _C._exchange_device(index)


def _exchange_device(device: int) -> int:
    """Makes ``device`` current and gives the previous one; a negative index changes nothing and gives -1."""
    return -1 if device < 0 else int(_C._exchange_device(device))


def _maybe_exchange_device(device: int) -> int:
    """As :func:`_exchange_device`; opens nothing on either device."""
    return _exchange_device(device)


class device:
    """Context manager that makes ``device`` (an int, ``"neuron:1"``, a torch.device; negative or None: no change) current."""

    def __init__(self, device: Any):
        self.idx = _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = _exchange_device(self.idx)
        return self

    def __exit__(self, *_: object) -> None:
        _maybe_exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage current; does nothing for one that lies elsewhere."""

    def __init__(self, obj: Any):
        super().__init__(obj.device.index if obj.device.type == DEVICE else -1)


class DeviceProperties(NamedTuple):
    """Facts about one logical NeuronCore.

    ``name`` is the generation that scripts look for (``"trn2"``) and says ``(emulated)`` when it is; ``architecture`` is the generation
    alone.
    """

    name: str
    product: str
    architecture: str
    instance: str
    total_memory: int  # bytes of HBM
    multi_processor_count: int  # physical cores behind the logical one
    chip: int
    major: int  # NeuronCore version
    minor: int
    is_emulated: bool


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Facts about ``device`` (default: the current one)."""
    return DeviceProperties(**_C._device_properties(_get_device_index(device, optional=True)))


@cache
def _is_emulated(index: int) -> bool:
    return bool(_C._device_properties(index)["is_emulated"])


def get_device_name(device: Any = None) -> str:
    """``"Trainium2"``, or ``"Trainium2 (emulated)"`` on a machine without the chip."""
    return get_device_properties(device).product


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Version of the NeuronCore: (3, 0) on Trainium2, (4, 0) on Trainium3."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def synchronize(device: Any = None) -> None:
    """Waits until all streams of ``device`` (default: the current one) have run, then raises what failed there, if anything did."""
    _C._synchronize(_get_device_index(device, optional=True))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: every NeuronCore computes in bfloat16."""
    return True
