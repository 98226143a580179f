"""``torch.autocast("neuron")`` and gradient scaling: thin names over ``torch.amp``."""

from __future__ import annotations

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("neuron", dtype=...)`` takes; the first is the default."""
    return [torch.bfloat16, torch.float16]
