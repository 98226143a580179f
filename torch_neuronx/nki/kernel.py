"""``nki.jit``: kernels as callable objects, traced once per shapes, dtypes and static arguments."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_neuronx.nki import arrays, check, liveness, races, torch_op, trace
from torch_neuronx.nki.dtypes import DType
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.memory import Buffer, MemoryRegion
from torch_neuronx.nki.simulator import Simulator, run_together
from torch_neuronx.nki.target import Target, current_target, target
from torch_neuronx.nki.tensor import NkiTensor
from torch_neuronx.nki.trace import SharedBuffers, TracedKernel, Tracer

_IGNORED = {"mode", "debug_kernel", "show_compiler_tb", "experimental_flags", "kernel_return", "enable_cache", "grid"}


@dataclasses.dataclass(frozen=True)
class _Spec:
    """An array argument in a cache key, and while tracing."""

    shape: tuple[int, ...]
    dtype: DType


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """An array's place in a structure of arguments, or an output's in what the kernel returns."""

    index: int


class Kernel:
    """A kernel function. Calling it inside another kernel inlines it; otherwise it is launched.

    ``kernel(...)`` runs on one core, ``kernel[2](...)`` on the two physical cores of a logical one.
    """

    is_beta1 = False  # the beta-1 front end: grids of any size, and a compiler that places and orders what the kernel does not
    tensor_class: type[NkiTensor] = NkiTensor  # of arguments

    __name__: str

    def __init__(self, function: Callable[..., Any], grid: tuple[int, ...] = (), schedule: Any = None) -> None:
        self.func = function
        self.grid = grid
        self.schedule = dict(schedule or {})
        self._cache: dict[Any, tuple[TracedKernel, Simulator]] = {}
        self._lock = threading.RLock()
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)

    def __getitem__(self, grid: Any) -> Kernel:
        """The kernel launched on a grid: the number of physical cores, 1 or 2."""
        sizes = grid if isinstance(grid, tuple) else (grid,)
        sizes = tuple(_grid_size(size) for size in sizes)
        if not self.is_beta1 and (len(sizes) != 1 or sizes[0] not in (1, 2)):
            raise NkiValidationError(f"{self.__name__}[{grid}]: a launch has 1 or 2 physical cores (the LNC degree)")
        known = self.__dict__.setdefault("_grids", {})
        if sizes not in known:
            known[sizes] = type(self)(self.func, sizes, self.schedule)
        return known[sizes]

    def with_schedule(self, edges: Sequence[tuple[str, Any]]) -> Kernel:
        """The kernel with edges ``(consumer, producer)`` or ``(consumer, [producers])`` between named instructions."""
        schedule: dict[str, list[str]] = {}
        for consumer, producers in edges:
            schedule.setdefault(consumer, []).extend([producers] if isinstance(producers, str) else producers)
        return type(self)(self.func, self.grid, schedule)

    @property
    def lnc(self) -> int:
        return math.prod(self.grid) if self.grid else 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if trace.active() is not None:
            return self.func(*args, **kwargs)
        return self.launch(args, kwargs)

    # Tracing.

    def finish(self, returned: Any) -> Any:
        """What the function returned, while its trace is still open."""
        return returned

    def trace(self, *args: Any, target: str | None = None, **kwargs: Any) -> TracedKernel:
        """The kernel's instructions for these arguments (arrays, tensors on any device, meta tensors too); from the cache when known.

        Args:
            target: trn1, trn2 or trn3; None follows the environment.
        """
        leaves, structure, bound = self._flatten(args, kwargs)
        return self._traced(leaves, structure, bound, _target(target))[0]

    def profile(self, *args: Any, target: str | None = None, **kwargs: Any) -> Any:
        """The modelled schedule of the kernel for these arguments; see ``torch_neuronx.nki.profiler``."""
        profiler = importlib.import_module("torch_neuronx.nki.profiler")
        return profiler.profile(self.trace(*args, target=target, **kwargs))

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any, inspect.BoundArguments]:
        """``(arrays, the arguments with _Leaf in their place, the same bound to names)``."""
        bound = inspect.Signature.bind(self.__signature__, *args, **_plain_names(kwargs))
        bound.apply_defaults()
        leaves: list[Any] = []
        seen: dict[int, int] = {}

        def walk(value: Any) -> Any:
            if arrays.is_array(value):
                if id(value) not in seen:
                    seen[id(value)] = len(leaves)
                    leaves.append(value)
                return _Leaf(seen[id(value)])
            if isinstance(value, tuple) and hasattr(value, "_fields"):
                return type(value)(*(walk(v) for v in value))
            if isinstance(value, (tuple, list)):
                return type(value)(walk(v) for v in value)
            if isinstance(value, dict):
                return {k: walk(v) for k, v in value.items()}
            return value

        structure = {name: walk(value) for name, value in bound.arguments.items()}
        return leaves, structure, bound

    def _traced(self, leaves: list[Any], structure: Any, bound: inspect.BoundArguments, on: Target) -> tuple[TracedKernel, Simulator]:
        specs = tuple(_Spec(tuple(int(n) for n in leaf.shape), arrays.dtype_of(leaf)) for leaf in leaves)
        key = (specs, _frozen(structure), on.name, check.mode(), _settings())
        with self._lock:
            if key not in self._cache:
                traced = trace_kernel(self, specs, structure, bound, on)
                self._cache[key] = traced, Simulator(traced)
            return self._cache[key]

    # Running.

    def launch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs on the emulated NeuronCore, on the memory of the arguments; gives arrays of their kind."""
        leaves, structure, bound = self._flatten(args, kwargs)
        traced, simulator = self._traced(leaves, structure, bound, current_target())
        if any(torch_op.is_fake(leaf) for leaf in leaves):
            return torch_op.fake_launch(traced, leaves)
        devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
        if any(device.type == "neuron" for device in devices):
            return torch_op.launch(traced, simulator, leaves)
        if any(device.type not in ("cpu", "neuron") for device in devices):
            raise ValueError(f"{self.__name__}: tensors must be on neuron or cpu, got {', '.join(map(str, devices))}")
        return self.run_on_host(traced, simulator, leaves)

    def run_on_host(self, traced: TracedKernel, simulator: Simulator, leaves: list[Any]) -> Any:
        memory = [arrays.argument(leaf) for leaf in leaves]
        with simulator.lock:
            flat = simulator.run([m.memory for m in memory])
        for index in traced.written_inputs:
            memory[index].copy_back()
        as_numpy = not any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        return assemble(traced, simulator, flat, leaves, as_numpy)

    def __repr__(self) -> str:
        return f"<nki kernel {self.__name__}{list(self.grid) if self.grid else ''}>"


def assemble(traced: TracedKernel, simulator: Simulator, flat: Sequence[torch.Tensor], leaves: list[Any], as_numpy: bool) -> Any:
    """What the kernel returned, with arrays in place of its tensors; a returned parameter is the caller's own array."""
    by_buffer = dict(zip(simulator.outputs, flat, strict=True))

    def build(view: NkiTensor) -> Any:
        if view.storage.input_index >= 0:
            return leaves[view.storage.input_index]
        whole = arrays.like_argument(by_buffer[view.storage], view._dtype, _whole_shape(view), as_numpy)
        return whole if _is_whole(view) else _viewed(whole, view, as_numpy)

    return rebuild(traced.result, [build(view) for view in traced.outputs])


def rebuild(structure: Any, values: Sequence[Any]) -> Any:
    """A structure with each leaf replaced by the value of its number."""
    if isinstance(structure, _Leaf):
        return values[structure.index]
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(rebuild(v, values) for v in structure))
    if isinstance(structure, (tuple, list)):
        return type(structure)(rebuild(v, values) for v in structure)
    if isinstance(structure, dict):
        return {k: rebuild(v, values) for k, v in structure.items()}
    return structure


def _is_whole(view: NkiTensor) -> bool:
    return view.offset == 0 and view.is_contiguous() and view.size * view.itemsize == view.storage.size * view.storage.dtype.bytes


def _whole_shape(view: NkiTensor) -> tuple[int, ...]:
    return view.shape if _is_whole(view) else (view.storage.size * view.storage.dtype.bytes // view.itemsize,)


def _viewed(whole: Any, view: NkiTensor, as_numpy: bool) -> Any:
    if as_numpy:
        import numpy as np

        strides = [stride * whole.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(whole[view.offset :], view.shape, strides).copy()
    return whole.as_strided(view.shape, view.strides, view.offset).contiguous()


def trace_kernel(kernel: Kernel, specs: Sequence[_Spec], structure: Any, bound: inspect.BoundArguments, on: Target) -> TracedKernel:
    """Runs the kernel function once per core, and the checks that need all of it."""
    shared = SharedBuffers()
    region = MemoryRegion.shared_hbm if kernel.lnc > 1 else MemoryRegion.private_hbm
    names = _names_of(structure, len(specs))
    inputs = [
        Buffer(shared.next_id(), names[k], region, spec.shape or (1,), spec.dtype, "input", input_index=k) for k, spec in enumerate(specs)
    ]
    programs, results, buffers = [], [], list(inputs)
    written: dict[Buffer, Any] = {}
    for core in range(kernel.lnc):
        tracer = Tracer(kernel.__name__, on, kernel.grid, _program_ids(kernel.grid, core), shared, core)
        tracer.schedule, tracer.beta1 = kernel.schedule, kernel.is_beta1
        if core:
            tracer.check.written.update({b: m for b, m in written.items() if b.region is MemoryRegion.shared_hbm})
        with trace.tracing(tracer):
            arguments = rebuild(structure, [kernel.tensor_class.whole(b) for b in inputs])
            results.append(kernel.finish(_call(kernel, bound, arguments)))
        written = tracer.check.written
        programs.append(tracer.nodes)
        buffers += [b for b in tracer.buffers if b not in buffers]
        if tracer.check.mode == "error" and not kernel.is_beta1:
            liveness.check_capacity(tracer.nodes, on)
    if len(programs) > 1 and check.mode() == "error" and not kernel.is_beta1:
        races.check_cores(programs)
    outputs: list[NkiTensor] = []
    result = _outputs(kernel, results[0], outputs, written)
    return TracedKernel(kernel.__name__, on, kernel.lnc, buffers, inputs, outputs, programs, result)


def _call(kernel: Kernel, bound: inspect.BoundArguments, arguments: dict[str, Any]) -> Any:
    args = inspect.BoundArguments(bound.signature, arguments)
    return kernel.func(*args.args, **args.kwargs)


def _outputs(kernel: Kernel, returned: Any, outputs: list[NkiTensor], written: dict[Buffer, Any]) -> Any:
    """Marks the returned tensors as outputs and checks them."""
    if isinstance(returned, NkiTensor):
        buffer = returned.storage
        where = f"{kernel.func.__code__.co_filename}:{kernel.func.__code__.co_firstlineno}: {kernel.__name__}"
        if buffer.region.on_chip or (buffer.region is not MemoryRegion.shared_hbm and buffer.input_index < 0 and not _lenient(kernel)):
            raise NkiValidationError(
                f"{where} returns {buffer.name}, which is in {buffer.region}; returned tensors must be in nl.shared_hbm"
            )
        if buffer.role == "scratch":
            buffer.role = "output"
            mask = written.get(buffer)
            if check.mode() != "off" and (mask is None or mask.is_empty):
                raise NkiValidationError(f"{where} returns {buffer.name}, which was never written")
            if mask is not None and not mask.full:
                buffer.needs_fill = True
        outputs.append(returned)
        return _Leaf(len(outputs) - 1)
    if isinstance(returned, (tuple, list)):
        return type(returned)(_outputs(kernel, value, outputs, written) for value in returned)
    if isinstance(returned, dict):
        return {key: _outputs(kernel, value, outputs, written) for key, value in returned.items()}
    return returned


def _lenient(kernel: Kernel) -> bool:
    return kernel.is_beta1 or os.environ.get("TORCH_NEURONX_NKI_RETURN_HBM") == "1"


def _grid_size(size: Any) -> int:
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"a grid has integer sizes, got {size!r}")
    return int(size.__index__())


def _program_ids(grid: tuple[int, ...], core: int) -> tuple[int, ...]:
    ids = []
    for size in reversed(grid):
        core, index = divmod(core, size)
        ids.append(index)
    return tuple(reversed(ids))


def _target(name: str | None) -> Target:
    return current_target() if name is None else target(name)


def _settings() -> tuple[Any, ...]:
    """Environment variables that change what a trace or its binding does."""
    names = (
        "NEURON_RT_STOCHASTIC_ROUNDING_EN",
        "NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE",
        "TORCH_NEURONX_NKI_MX_SCALE",
        "TORCH_NEURONX_NKI_RETURN_HBM",
    )
    return tuple(os.environ.get(name) for name in names)


def _plain_names(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Test harnesses mark in-place parameters by the suffix ``.must_alias_input``."""
    return {name.removesuffix(".must_alias_input"): value for name, value in kwargs.items()}


def _names_of(structure: dict[str, Any], count: int) -> list[str]:
    names = [f"input{k}" for k in range(count)]

    def walk(value: Any, name: str) -> None:
        if isinstance(value, _Leaf):
            names[value.index] = name
        elif isinstance(value, (tuple, list)):
            for k, item in enumerate(value):
                walk(item, f"{name}{k}")
        elif isinstance(value, dict):
            for k, item in value.items():
                walk(item, f"{name}_{k}")

    for name, value in structure.items():
        walk(value, name)
    return names


def _frozen(value: Any) -> Any:
    """A hashable form of a static argument: equal for what makes the same kernel.

    Raises:
        TypeError: the value can be neither hashed nor taken apart.
    """
    if isinstance(value, (_Leaf, str, bytes, type(None), type, torch.dtype, DType)):
        return value
    if isinstance(value, (bool, int, float)):
        return type(value), repr(value)
    if isinstance(value, enum.Enum):
        return type(value), value.name
    if isinstance(value, (tuple, list)):
        return type(value).__name__, tuple(_frozen(v) for v in value)
    if isinstance(value, dict):
        return "dict", tuple((k, _frozen(v)) for k, v in value.items())
    if isinstance(value, functools.partial):
        return "partial", value.func, _frozen(value.args), _frozen(value.keywords)
    if dataclasses.is_dataclass(value) or ("__eq__" not in vars(type(value)) and hasattr(value, "__dict__") and not callable(value)):
        return type(value), tuple((k, _frozen(v)) for k, v in sorted(vars(value).items()))
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"a kernel argument of type {type(value).__name__} can neither be hashed nor taken apart; pass numbers or tuples"
        ) from None
    return value


def jit(fn: Any = None, **kwargs: Any) -> Any:
    """Makes a kernel of a function, with or without parentheses. Arguments of old releases are accepted and ignored.

    Raises:
        TypeError: ``platform_target=`` (removed: set NEURON_PLATFORM_TARGET_OVERRIDE), or an unknown argument.
    """
    if "platform_target" in kwargs:
        raise TypeError("nki.jit(platform_target=) was removed. Set NEURON_PLATFORM_TARGET_OVERRIDE to trn1, trn2 or trn3")
    unknown = set(kwargs) - _IGNORED
    if unknown:
        raise TypeError(f"nki.jit got an unexpected keyword argument {sorted(unknown)[0]!r}")
    if fn is None:
        return jit
    if isinstance(fn, Kernel):
        return fn
    if not callable(fn):
        raise TypeError(f"nki.jit decorates a function, got {type(fn).__name__}")
    return Kernel(fn)


def simulate(kernel: Any) -> Kernel:
    """The kernel, to be called with NumPy arrays or tensors and run on the emulated NeuronCore; a plain function is wrapped."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


def simulate_ranks(kernel: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """The kernel on several ranks that run together and exchange through ``nki.collectives``.

    Returns:
        A function of a list with the arguments of each rank (a tuple, or a dict of keyword arguments); it gives the list of their results.
    """
    wrapped = simulate(kernel)

    def run(arguments: Sequence[Any]) -> list[Any]:
        ranks = []
        for rank, given in enumerate(arguments):
            args, kwargs = ((), given) if isinstance(given, dict) else (tuple(given), {})
            leaves, structure, bound = wrapped._flatten(args, kwargs)
            traced, _ = wrapped._traced(leaves, structure, bound, current_target())
            ranks.append((traced, Simulator(traced, rank), leaves, [arrays.argument(leaf) for leaf in leaves]))
        results = []
        for _, simulator, _, memory in ranks:
            flat = [torch.empty(b.size * b.dtype.bytes, dtype=torch.uint8) for b in simulator.outputs]
            simulator.start([m.memory for m in memory], flat)
            results.append(flat)
        run_together([core for _, simulator, _, _ in ranks for core in simulator.cores])
        given_back = []
        for (traced, simulator, leaves, memory), flat in zip(ranks, results, strict=True):
            simulator.finish()
            for index in traced.written_inputs:
                memory[index].copy_back()
            given_back.append(assemble(traced, simulator, flat, leaves, not any(isinstance(leaf, torch.Tensor) for leaf in leaves)))
        return given_back

    return run


__all__ = ["Kernel", "assemble", "jit", "simulate", "simulate_ranks"]
