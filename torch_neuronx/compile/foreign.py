"""Operators of other libraries that have no kernel for `neuron`: refused when a graph is compiled, as TORCH_NEURONX_FALLBACK says."""

from __future__ import annotations

import os

import torch
from torch.fx import GraphModule

from torch_neuronx._utils import DEVICE
from torch_neuronx.compile import cut
from torch_neuronx.compile.options import Settings

# A kernel under one of these runs on the device's tensors; what torch.library.custom_op() registers for all devices is the second.
_KEYS = ("PrivateUse1", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


def check(gm: GraphModule, settings: Settings) -> None:
    """Raises NotImplementedError for the first operator that could only run on the host. Under compile that is the default."""
    if is_allowed(settings):
        return
    for node in gm.graph.nodes:
        op = node.target
        if not isinstance(op, torch._ops.OpOverload) or op.namespace in cut.NAMESPACES or _has_kernel(op):
            continue
        tensors = [value for source in (node, *node.all_input_nodes) for value in cut.values(source) if isinstance(value, torch.Tensor)]
        if any(tensor.device.type == DEVICE for tensor in tensors):
            raise NotImplementedError(
                f"{op.name()} cannot be compiled for device {DEVICE}: its library registers no kernel for it (PrivateUse1), and compiled "
                f"graphs do not run operators on the host unless told to. Set TORCH_NEURONX_FALLBACK=warn or allow, pass "
                f'options={{"fallback_execution": True}}, register a kernel with torch.library, or move its tensors to the CPU.'
            )


def is_allowed(settings: Settings) -> bool:
    """True when the option or the environment lets such operators run on the host."""
    if settings.fallback_execution is not None:
        return settings.fallback_execution
    return os.environ.get("TORCH_NEURONX_FALLBACK", "error") in ("warn", "allow")


def _has_kernel(op: torch._ops.OpOverload) -> bool:
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in _KEYS)
