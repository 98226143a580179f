"""``torch.autocast("neuron")`` and gradient scaling: thin names over ``torch.amp``."""

from __future__ import annotations

import sys
from types import FrameType

import torch

from torch_neuronx import _C


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("neuron", dtype=...)`` takes; the first is the default."""
    if _C._use_default_autocast_dtype():
        _give_default(sys._getframe(1))
    return [torch.bfloat16, torch.float16]


def _give_default(caller: FrameType) -> None:
    """PyTorch keeps the default per thread, starts at float16, and ``torch.autocast`` has read it when it calls this module for the first
    time in a thread: then the instance being made gets the default that the thread has now."""
    if caller.f_code is torch.autocast.__init__.__code__ and caller.f_locals["dtype"] is None:
        caller.f_locals["self"].fast_dtype = torch.get_autocast_dtype("neuron")
