"""Kernels and PyTorch: every launch on tensors is a call of one operator, which graphs, modes and profilers see.

``nki::kernel`` (``nki::kernel_into`` when the kernel writes to arguments) takes the name of a *site*, that is a kernel with all arguments
but its tensors. The implementation enqueues a launch (launches.py).
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._C._profiler import _RecordFunctionFast

from torch_neuronx import _C, _device
from torch_neuronx.compile import hook
from torch_neuronx.nki import arrays, launches, symbolic

if TYPE_CHECKING:
    from torch_neuronx.nki.kernel import Compiled, Kernel, Spec
    from torch_neuronx.nki.trace import TracedKernel

# --- sites ------------------------------------------------------------------------------------------------------------------------------

_numbers = itertools.count()
_sites: weakref.WeakValueDictionary[str, Site] = weakref.WeakValueDictionary()
_in_graphs: set[Site] = set()  # named by graphs, so they stay


@dataclass(eq=False)
class Site:
    """A kernel with all arguments but its tensors. Kept by the kernel, and found by its name."""

    kernel: Kernel
    structure: dict[str, Any]
    written: tuple[int, ...]  # which tensors the kernel writes
    name: str

    def compiled(self, specs: tuple[Spec, ...]) -> Compiled:
        return self.kernel.compiled(specs, self.structure, self.kernel.target())

    def split(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """``(only read, written)``."""
        return [leaf for k, leaf in enumerate(leaves) if k not in self.written], [leaves[k] for k in self.written]

    def join(self, read: Sequence[Any], written: Sequence[Any]) -> list[Any]:
        rest, changed = iter(read), dict(zip(self.written, written, strict=True))
        return [changed[k] if k in changed else next(rest) for k in range(len(read) + len(written))]


def _site(kernel: Kernel, structure: dict[str, Any], written: Sequence[int]) -> Site:
    from torch_neuronx.nki.kernel import frozen

    key = (frozen(structure), tuple(written))
    if key not in kernel.sites:
        kernel.sites[key] = Site(kernel, structure, tuple(written), f"{kernel.__name__}#{next(_numbers)}")
        _sites[kernel.sites[key].name] = kernel.sites[key]
    return kernel.sites[key]


def site_named(name: str) -> Site:
    """The site that a graph names.

    Raises:
        RuntimeError: it is not of this process.
    """
    if name not in _sites:
        raise RuntimeError(
            f"a graph calls the NKI kernel {name}, which is none of this process. A graph that is kept for other processes can call "
            "kernels only through operators with a name of their own: decorate a function that calls the kernel with @torch_neuronx.nki_op"
        )
    return _sites[name]


# --- calls ------------------------------------------------------------------------------------------------------------------------------


def call(kernel: Kernel, leaves: list[torch.Tensor], structure: dict[str, Any]) -> Any:
    """A launch whose arrays are all tensors: real ones, or fakes of which only metadata counts."""
    from torch_neuronx.nki.kernel import assemble, show_tensor, specs_of

    def traced(specs: tuple[Spec, ...]) -> TracedKernel:
        return kernel.compiled(specs, structure, kernel.target()).traced

    sizes: list[Any] = []
    if symbolic.is_symbolic(leaves):
        sizes = symbolic.output_sizes(kernel, leaves, structure, traced)
        found = traced(symbolic.example(leaves))
    else:
        found = traced(specs_of(leaves))
    site = _site(kernel, structure, found.written_inputs)
    if not site.written:
        values = _kernel(site.name, leaves, sizes)
    elif found.output_buffers and torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves):
        values = list(_WithoutGradient.apply(site, found, sizes, *leaves))
    else:
        values = _written_into(site, found, sizes, leaves)
    return assemble(found, values, leaves, show_tensor)


def _written_into(site: Site, found: TracedKernel, sizes: list[Any], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A launch that writes to arguments: PyTorch makes such operators functional only if they return nothing."""
    values = _empty(found, sizes, leaves[0].device)
    _kernel_into(site.name, *site.split(leaves), values)
    return values


class InGraph:
    """A kernel, possibly on a grid, in code that Dynamo traces."""

    def __init__(self, kernel: Kernel, grid: Any = ()) -> None:
        self.kernel, self.grid = kernel, grid

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        results = in_graph(self.kernel, self.grid, graphable(args), graphable(kwargs))
        return results[0] if results else None


_constants: list[Any] = []
_CONSTANT = "nki constant "


def graphable(value: Any) -> Any:
    """Arguments as a graph may have them: other constants than numbers and strings (None, enums, functions) become names."""
    if isinstance(value, (torch.Tensor, bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple([graphable(item) for item in value])
    if isinstance(value, dict):
        return {key: graphable(item) for key, item in value.items()}
    return f"{_CONSTANT}{_number_of(value)}"


def _number_of(value: Any) -> int:
    for number, known in enumerate(_constants):
        if known is value:
            return number
    _constants.append(value)
    return len(_constants) - 1


_number_of._dynamo_marked_constant = True  # type: ignore[attr-defined]  # Dynamo calls it and guards on the argument


def _restored(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_CONSTANT):
        return _constants[int(value.removeprefix(_CONSTANT))]
    if isinstance(value, tuple):
        return tuple(_restored(item) for item in value)
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    return value


def in_graph(kernel: Kernel, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """One opaque node for Dynamo, into which AOTAutograd looks and finds the operator.

    Returns:
        The result in a list, or an empty list for None, which is no output of a node.
    """
    result = (kernel[grid] if grid != () else kernel).launch(_restored(args), _restored(kwargs))
    return [] if result is None else [result]


def _mark_for_dynamo() -> None:
    global in_graph
    in_graph = torch._dynamo.nonstrict_trace(in_graph)


hook.after_import("torch._dynamo", _mark_for_dynamo)


def execute(compiled: Compiled, leaves: Sequence[Any]) -> list[torch.Tensor]:
    """Runs a kernel on the memory of its arguments: in the current stream if they are on ``neuron``, else at once.

    Returns:
        The bytes of each output buffer, on the device of the tensors among the arguments (``neuron`` if one is there).

    Raises:
        ValueError: the tensors are on several ``neuron`` devices, or on other devices than ``neuron`` and the CPU.
    """
    traced, simulator = compiled.traced, compiled.simulator
    devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)} - {torch.device("cpu")}
    if len(devices) > 1 or any(device.type != "neuron" for device in devices):
        raise ValueError(f"{traced.name}: tensors must be on one neuron device or the CPU, got {', '.join(sorted(map(str, devices)))}")
    device = devices.pop() if devices else torch.device("cpu")
    memory = [arrays.argument(leaf) for leaf in leaves]
    results = [torch.empty(b.size * b.dtype.bytes, dtype=torch.uint8, device=device) for b in traced.output_buffers]
    replay = functools.partial(simulator.run, [m.address for m in memory], [_C._nki_address(result) for result in results])
    on_the_stream = device.type == "neuron" and all(m.memory.device == device for m in memory)
    if not (on_the_stream and launches.enqueue(device, replay)):
        arrays.settle(memory)
        replay()
    for index in traced.written_inputs:
        memory[index].copy_back()
    return results


def typed(traced: TracedKernel, flat: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The output buffers as tensors of their dtypes and shapes."""
    return [arrays.to_tensor(one, buffer.dtype, buffer.shape) for one, buffer in zip(flat, traced.output_buffers, strict=True)]


# --- the operator -----------------------------------------------------------------------------------------------------------------------


def _run(name: str, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    from torch_neuronx.nki.kernel import specs_of

    site = site_named(name)
    leaves = site.join(read, written)
    if _on_a_chip(leaves):
        if site.written:
            raise NotImplementedError(
                f"the NKI kernel {site.kernel.__name__} writes to its arguments, which a NeuronCore's custom call cannot. Let it return "
                "a tensor, and copy that"
            )
        return list(_C._nki_launch_on_chip(name, leaves, sizes))
    compiled = site.compiled(specs_of(leaves))
    _compare(site, compiled.traced, sizes)
    with _RecordFunctionFast(f"nki::{site.kernel.__name__}"):
        return typed(compiled.traced, execute(compiled, leaves))


def _on_a_chip(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether a launch is a Program of the chip's: a custom call in a NEFF (lowering/ops/kernels.py)."""
    device = next((leaf.device for leaf in leaves if leaf.device.type == "neuron"), None)
    return device is not None and not _device._is_emulated(device.index)


def _empty(traced: TracedKernel, sizes: Sequence[Any], device: torch.device) -> list[torch.Tensor]:
    """Tensors for the output buffers; ``sizes``, unless empty, are those of all, one after the other."""
    rest = list(sizes or [n for buffer in traced.output_buffers for n in buffer.shape])
    made = []
    for buffer in traced.output_buffers:
        shape, rest = rest[: len(buffer.shape)], rest[len(buffer.shape) :]
        made.append(torch.empty(shape, dtype=arrays.public_dtype(buffer.dtype), device=device))
    return made


def _compare(site: Site, traced: TracedKernel, sizes: Sequence[int]) -> None:
    """What a graph with symbolic sizes, or one that was traced for other sizes, took for granted."""
    found = [n for buffer in traced.output_buffers for n in buffer.shape]
    if sizes and list(sizes) != found:
        raise RuntimeError(
            f"{site.kernel.__name__}: a graph with dynamic sizes expects outputs with sizes {list(sizes)}, these arguments give {found}. "
            "Call torch._dynamo.mark_static() for the sizes on which they depend, or compile with dynamic=False"
        )
    if tuple(traced.written_inputs) != site.written:
        raise RuntimeError(
            f"{site.kernel.__name__}: for these sizes the kernel writes to the tensors {traced.written_inputs}, in the graph it was traced "
            f"for it wrote to {list(site.written)}. Compile with dynamic=False"
        )


@torch.library.custom_op("nki::kernel", mutates_args=(), schema="(str kernel, Tensor[] inputs, SymInt[] sizes) -> Tensor[]")
def _kernel(kernel: str, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    return _run(kernel, inputs, (), sizes)


@_kernel.register_fake
def _(kernel: str, inputs: Sequence[torch.Tensor], sizes: Sequence[Any]) -> list[torch.Tensor]:
    """Empty tensors: a trace needs shapes and dtypes only."""
    site = site_named(kernel)
    _in_graphs.add(site)
    return _empty(site.compiled(symbolic.example(inputs)).traced, sizes, inputs[0].device)


@torch.library.custom_op(
    "nki::kernel_into",
    mutates_args=("written", "outputs"),
    schema="(str kernel, Tensor[] inputs, Tensor(a!)[] written, Tensor(b!)[] outputs) -> ()",
)
def _kernel_into(kernel: str, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    sizes = [n for output in outputs for n in output.shape]
    for output, value in zip(outputs, _run(kernel, inputs, written, sizes), strict=True):
        output.copy_(value)


@_kernel_into.register_fake
def _(kernel: str, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    _in_graphs.add(site_named(kernel))


def _no_gradient(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        f"the NKI kernel {ctx.kernel.rpartition('#')[0]} has no gradient. Call it in a function decorated with @torch_neuronx.nki_op and "
        "give that one with register_autograd(), or call it in a torch.autograd.Function"
    )


_kernel.register_autograd(_no_gradient, setup_context=lambda ctx, inputs, output: setattr(ctx, "kernel", inputs[0]))


class _WithoutGradient(torch.autograd.Function):
    """A launch that writes to arguments: PyTorch lets no operator that writes have a backward, not even one that refuses."""

    @staticmethod
    def forward(ctx: Any, site: Site, found: TracedKernel, sizes: list[Any], *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.kernel = site.name
        return tuple(_written_into(site, found, sizes, leaves))

    backward = staticmethod(_no_gradient)


# --- public -----------------------------------------------------------------------------------------------------------------------------


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
