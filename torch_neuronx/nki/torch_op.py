"""Kernels and PyTorch: launches on ``neuron`` tensors, custom ops, fake implementations.

A launch waits for the current stream and then runs inline, on the memory of the tensors: emulated kernels are Python, and Python never
runs on a stream thread. What is enqueued afterwards sees the results, so the order is that of the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torch_neuronx.nki import arrays
from torch_neuronx.nki.trace import TracedKernel

if TYPE_CHECKING:
    from torch_neuronx.nki.simulator import Simulator


def launch(traced: TracedKernel, simulator: Simulator, leaves: list[Any]) -> Any:
    """Runs a kernel whose arguments are ``neuron`` tensors (all on one device; CPU tensors may be among them).

    Raises:
        ValueError: the tensors are on different devices.
    """
    from torch_neuronx.nki.kernel import assemble

    devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type == "neuron"}
    if len(devices) > 1:
        raise ValueError(f"{traced.name}: all tensors must be on one device, got {', '.join(sorted(map(str, devices)))}")
    device = devices.pop()
    memory = [arrays.argument(leaf) for leaf in leaves]
    results = [torch.empty(b.size * b.dtype.bytes, dtype=torch.uint8, device=device) for b in simulator.outputs]
    torch.neuron.current_stream(device).synchronize()  # type: ignore[attr-defined]
    with simulator.lock:
        simulator.run_into([m.memory for m in memory], results)
    for index in traced.written_inputs:
        memory[index].copy_back()
    return assemble(traced, simulator, results, leaves, as_numpy=False)
