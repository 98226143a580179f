"""What ``torch.compile(model)`` without a backend does once the device is loaded.

PyTorch's default is one for all devices, so ours looks at each graph: work on `neuron` goes to backend "neuron", all else to Inductor, with
the user's mode and options, as if nothing were installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_neuronx._utils import DEVICE
from torch_neuronx.compile.options import parse


def register() -> None:
    """Names backend "neuron", and makes :func:`select` the default unless somebody has chosen another already."""
    from torch._dynamo.backends import registry

    registry.register_backend(neuron)
    if registry.get_default_backend() == "inductor":
        registry.set_default_backend(select)


def neuron(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Backend "neuron". Imports what compiles when there is something to compile."""
    from torch_neuronx.compile.backend import compile_graph

    return compile_graph(gm, example_inputs, parse(mode, options))


def select(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles with backend "neuron" when ``gm`` works on a tensor on `neuron`, else with Inductor."""
    if works_on_neuron(gm, example_inputs):
        return neuron(gm, example_inputs, mode=mode, options=options)
    return torch._TorchCompileInductorWrapper(mode, options, dynamic=None)(gm, example_inputs)


# Reports, recompile messages and PyTorch's minifier speak of a backend by its name; CPU graphs are Inductor's.
select.__name__ = "inductor"


def works_on_neuron(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """True when an input, a parameter or a value inside ``gm`` lies on `neuron`."""

    def is_there(value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return value.device.type == DEVICE
        if isinstance(value, (tuple, list)):
            return any(map(is_there, value))
        return False

    if any(map(is_there, example_inputs)) or any(map(is_there, gm.parameters())) or any(map(is_there, gm.buffers())):
        return True
    return any(is_there(node.meta.get("example_value")) for node in gm.graph.nodes)
