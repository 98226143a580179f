"""Kernels and PyTorch: launches on ``neuron`` tensors, custom ops, fake implementations.

A launch waits for the current stream and then runs inline, on the memory of the tensors: emulated kernels are Python, and Python never
runs on a stream thread. What is enqueued afterwards sees the results, so the order is that of the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torch_neuronx.nki import arrays
from torch_neuronx.nki.trace import TracedKernel

if TYPE_CHECKING:
    from torch_neuronx.nki.simulator import Simulator


def is_fake(value: Any) -> bool:
    """A tensor without data, of which only the metadata counts."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.device.type == "meta" or type(value).__name__ in ("FakeTensor", "FunctionalTensor")


def fake_launch(traced: TracedKernel, leaves: list[Any]) -> Any:
    """What the kernel would return: empty tensors. A trace needs shapes and dtypes only."""
    from torch_neuronx.nki.kernel import rebuild

    device = next(leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor))

    def make(view: Any) -> torch.Tensor:
        if view.storage.input_index >= 0:
            return leaves[view.storage.input_index]
        kind = view._dtype
        return torch.empty(view.shape, dtype=arrays.public_dtype(kind), device=device)

    return rebuild(traced.result, [make(view) for view in traced.outputs])


def nki_op(name: str, *, mutates_args: Any = ()) -> Callable[[Callable[..., Any]], torch.library.CustomOpDef]:
    """Decorator: makes a function that calls kernels a ``torch.library`` custom op, in eager and under ``torch.compile`` one node.

    The schema comes from the type annotations. The fake implementation is the function itself: on tensors without data, a kernel is only
    traced. Gradients: ``op.register_autograd(backward, setup_context=...)``, as for any custom op.

    Args:
        name: ``"namespace::op"``.
        mutates_args: names of the parameters that the function writes to; a dict or any other collection.

    Example::

        @nki_op("mylib::scale", mutates_args={})
        def scale(x: torch.Tensor) -> torch.Tensor:
            return scale_kernel(x)
    """

    def make(function: Callable[..., Any]) -> torch.library.CustomOpDef:
        op = torch.library.custom_op(name, function, mutates_args=mutates_args if isinstance(mutates_args, str) else tuple(mutates_args))
        op.register_fake(function)
        return op

    return make


def wrap_nki(kernel: Any) -> Any:
    """The kernel, to be launched on ``wrap_nki(kernel)[lnc](...)`` physical cores; a plain function is made one."""
    from torch_neuronx.nki.kernel import jit

    return jit(kernel)


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
