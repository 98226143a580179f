"""Random numbers that are drawn in the forward pass and again in the backward pass (activation checkpointing).

PyTorch's partitioner wraps such calls in two operators of higher order that know CUDA, XPU, HPU and the CPU; these stand in for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims import rng_prims
from torch.fx import GraphModule

from torch_neuronx import random
from torch_neuronx._utils import DEVICE
from torch_neuronx.compile import cut


def run_and_save_state(device: int, op: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """The state of the device's generator, and what ``op`` gives when it draws from there."""
    return random.get_rng_state(device), op(*args, **kwargs)


def run_with_state(device: int, state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    """What ``op`` gives when it draws from ``state`` on; the generator goes on as if nothing had been drawn."""
    now = random.get_rng_state(device)
    random.set_rng_state(state, device)
    try:
        return op(*args, **kwargs)
    finally:
        random.set_rng_state(now, device)


_REPLACEMENTS = {rng_prims.run_and_save_rng_state: run_and_save_state, rng_prims.run_with_rng_state: run_with_state}


def replace(gm: GraphModule) -> None:
    """Puts the functions above in the place of PyTorch's operators, where the numbers are for `neuron`."""
    for node in gm.graph.nodes:
        replacement = _REPLACEMENTS.get(node.target)
        if replacement is None:
            continue
        sources = (value for source in (node, *node.all_input_nodes) for value in cut.values(source))
        devices = {value.device for value in sources if isinstance(value, torch.Tensor) and value.device.type == DEVICE}
        if devices:
            (device,) = devices
            node.target, node.args = replacement, (device.index or 0, *node.args)
