"""Device arguments, as PyTorch's device modules take them."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import _C

DEVICE = "neuron"


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """The index that ``device`` means: an int, ``"neuron:1"``, a :class:`torch.device` or None.

    ``optional`` lets None and a device without an index mean the current device; ``allow_cpu`` lets a CPU device through as -1.
    """
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != DEVICE:
            raise ValueError(f"Expected a {DEVICE} device, but got: {device}")
        device = device.index
    if device is None:
        if not optional:
            raise ValueError(
                f"Expected a torch.device with a specified index or an integer, as in 'neuron:0', but got: {DEVICE} without an index"
            )
        return int(_C._current_device())
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(f"Expected an int, a str such as 'neuron:0', a torch.device or None, but got {type(device).__name__}")
    return device
