"""What Dynamo asks about the device: streams and events in compiled code, the current device, properties."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import device_interface as dynamo

from torch_neuronx import _device, _surface, memory, streams
from torch_neuronx._utils import DEVICE, _get_device_index


def _properties() -> list[Any]:
    """Those of all devices, kept for compile workers, which must not open the device."""
    cache = dynamo.caching_worker_device_properties
    if DEVICE not in cache:
        cache[DEVICE] = [_device.get_device_properties(i) for i in range(_device.device_count())]
    return cache[DEVICE]


class _Worker:
    @staticmethod
    def set_device(device: int) -> None:
        dynamo.caching_worker_current_devices[DEVICE] = device

    @staticmethod
    def current_device() -> int:
        return dynamo.caching_worker_current_devices.get(DEVICE, _device.current_device())

    @staticmethod
    def get_device_properties(device: Any = None) -> Any:
        index = _Worker.current_device() if device is None else _get_device_index(device, optional=True)
        return _properties()[index]


class NeuronInterface(dynamo.DeviceInterface):
    """Every name that :class:`torch._dynamo.device_interface.DeviceInterface` declares, answered by ``torch.neuron``."""

    device = _device.device
    Event = streams.Event
    Stream = streams.Stream
    Worker = _Worker  # type: ignore[assignment]

    current_device = staticmethod(_device.current_device)
    set_device = staticmethod(_device.set_device)
    device_count = staticmethod(_device.device_count)
    is_available = staticmethod(_device.is_available)
    exchange_device = staticmethod(_device._exchange_device)
    maybe_exchange_device = staticmethod(_device._maybe_exchange_device)
    stream = staticmethod(streams.stream)
    current_stream = staticmethod(streams.current_stream)
    set_stream = staticmethod(streams.set_stream)
    synchronize = staticmethod(_device.synchronize)
    is_bf16_supported = staticmethod(_device.is_bf16_supported)
    get_compute_capability = staticmethod(_device.get_device_capability)
    memory_allocated = staticmethod(memory.memory_allocated)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        streams.set_stream(streams.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return streams.current_stream(device_idx).stream_id

    @classmethod
    def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return True


def register() -> None:
    """Tells Dynamo of the device and of each of its indices. Opens nothing."""
    for name in (DEVICE, *(f"{DEVICE}:{i}" for i in range(_surface.device_count()))):
        dynamo.register_interface_for_device(name, NeuronInterface)
