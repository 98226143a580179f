"""What Dynamo makes of calls of ``torch.neuron`` in compiled code: as with ``torch.cuda``'s, they are called, not traced."""

from __future__ import annotations

import inspect

from torch_neuronx import _device

# Modules that drive the device or look at it; what they do must not become part of a graph. Parts of the package that users compile
# (custom kernels, collectives) are not in this list.
_CALLED = ("_comm", "_exit", "aot", "compile", "config", "explain", "interop", "ipc", "memory", "metrics", "random", "streams", "_utils")

# Their answers do not change while a process runs, so that compiled code may hold them.
_CONSTANT = ("is_available", "device_count", "is_bf16_supported", "get_device_name", "get_device_properties", "get_device_capability")


def register() -> None:
    """Adds them to Dynamo's rules."""
    from torch._dynamo import trace_rules

    for name in _CALLED:
        trace_rules.add(f"torch_neuronx.{name}")
    for name, function in vars(_device).items():
        if name in _CONSTANT:
            function._dynamo_marked_constant = True
        elif inspect.isfunction(function):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            function._torchdynamo_disable_msg = "it drives the device"  # type: ignore[attr-defined]
