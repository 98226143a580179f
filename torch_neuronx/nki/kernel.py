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
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from torch_neuronx import _C
from torch_neuronx.nki import arrays, check, liveness, races, torch_op, trace
from torch_neuronx.nki.dtypes import DType
from torch_neuronx.nki.errors import NkiValidationError, NkiWarning
from torch_neuronx.nki.host import plain_torch
from torch_neuronx.nki.memory import Buffer, MemoryRegion
from torch_neuronx.nki.simulator import Simulator, run_together
from torch_neuronx.nki.target import Target, current_target, target
from torch_neuronx.nki.tensor import NkiTensor
from torch_neuronx.nki.trace import SharedBuffers, TracedKernel, Tracer

_IGNORED = {"mode", "debug_kernel", "show_compiler_tb", "experimental_flags", "kernel_return", "enable_cache", "grid"}


@dataclasses.dataclass(frozen=True)
class Spec:
    """An array argument in a cache key, and while tracing."""

    shape: tuple[int, ...]
    dtype: DType


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """An array's place in a structure of arguments, or an output's in what the kernel returns."""

    index: int


@dataclasses.dataclass
class Compiled:
    """A traced kernel, and its Simulator once it has run."""

    traced: TracedKernel

    @functools.cached_property
    def simulator(self) -> Simulator:
        with plain_torch():
            return Simulator(self.traced)


class Kernel:
    """A kernel function. Calling it inside another kernel inlines it; otherwise it is launched.

    ``kernel(...)`` runs on one core, ``kernel[2](...)`` on the two physical cores of a logical one.
    """

    is_beta1 = False  # the beta-1 front end: grids of any size, and a compiler that places and orders what the kernel does not
    tensor_class: type[NkiTensor] = NkiTensor  # of arguments

    __name__: str

    def __init__(self, function: Callable[..., Any], grid: tuple[int, ...] = (), schedule: Any = None, platform: str | None = None) -> None:
        self.func = function
        self.grid = grid
        self.platform = platform  # ``jit(platform_target=)``
        self.schedule = dict(schedule or {})
        self._cache: dict[Any, Compiled] = {}
        self._grids: dict[tuple[int, ...], Kernel] = {}
        self.sites: dict[Any, torch_op.Site] = {}
        self._lock = threading.RLock()
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)

    def __getitem__(self, grid: Any) -> Any:
        """The kernel launched on a grid: the number of physical cores, 1 or 2."""
        if torch.compiler.is_dynamo_compiling():
            return torch_op.InGraph(self, grid)
        sizes = tuple(_grid_size(size) for size in (grid if isinstance(grid, tuple) else (grid,)))
        if not self.is_beta1 and (len(sizes) != 1 or sizes[0] not in (1, 2)):
            raise NkiValidationError(f"{self.__name__}[{grid}]: a launch has 1 or 2 physical cores (the LNC degree)")
        if sizes not in self._grids:
            self._grids[sizes] = type(self)(self.func, sizes, self.schedule, self.platform)
        return self._grids[sizes]

    def with_schedule(self, edges: Sequence[tuple[str, Any]]) -> Kernel:
        """The kernel with edges ``(consumer, producer)`` or ``(consumer, [producers])`` between named instructions."""
        schedule: dict[str, list[str]] = {}
        for consumer, producers in edges:
            schedule.setdefault(consumer, []).extend([producers] if isinstance(producers, str) else producers)
        return type(self)(self.func, self.grid, schedule, self.platform)

    def target(self, name: str | None = None) -> Target:
        """What it is traced for: ``name``, else what the environment says, else what its decorator says, else the emulated instance."""
        return current_target(self.platform) if name is None else target(name)

    @property
    def lnc(self) -> int:
        return math.prod(self.grid) if self.grid else 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return torch_op.InGraph(self)(*args, **kwargs)
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
        leaves, structure = self.flatten(args, kwargs)
        return self.compiled(specs_of(leaves), structure, self.target(target)).traced

    def profile(self, *args: Any, target: str | None = None, **kwargs: Any) -> Any:
        """The modelled schedule of the kernel for these arguments; see ``torch_neuronx.nki.profiler``."""
        profiler = importlib.import_module("torch_neuronx.nki.profiler")
        return profiler.profile(self.trace(*args, target=target, **kwargs))

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """``(arrays, the arguments by name with _Leaf in place of arrays)``. Symbolic numbers become their values."""
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
            return _SYMBOLIC[type(value)](value) if type(value) in _SYMBOLIC else value

        return leaves, {name: walk(value) for name, value in bound.arguments.items()}

    def compiled(self, specs: tuple[Spec, ...], structure: dict[str, Any], on: Target) -> Compiled:
        """The kernel for these arrays and other arguments; from the cache when known."""
        key = (specs, frozen(structure), on.name, check.mode(), _settings())
        with self._lock:
            if key not in self._cache:
                with plain_torch():
                    self._cache[key] = Compiled(trace_kernel(self, specs, structure, on))
            return self._cache[key]

    # Running.

    def launch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs on the emulated NeuronCore, on the memory of the arguments; gives arrays of their kind."""
        leaves, structure = self.flatten(args, kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if tensors and len(tensors) == len(leaves):
            return torch_op.call(self, leaves, structure)
        compiled = self.compiled(specs_of(leaves), structure, self.target())
        flat = torch_op.execute(compiled, leaves)
        return _given_back(compiled.traced, flat, leaves)

    def __eq__(self, other: object) -> bool:  # said explicitly: torch.compile guards on it
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __init_subclass__(cls) -> None:
        _pytree.register_constant(cls)

    def __repr__(self) -> str:
        return f"<nki kernel {self.__name__}{list(self.grid) if self.grid else ''}>"


_pytree.register_constant(Kernel)  # in compiled code it is an argument of torch_op.in_graph
_SYMBOLIC: dict[type, Callable[[Any], Any]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def specs_of(leaves: Sequence[Any]) -> tuple[Spec, ...]:
    return tuple(Spec(tuple(int(n) for n in leaf.shape), arrays.dtype_of(leaf)) for leaf in leaves)


def assemble(traced: TracedKernel, values: Sequence[Any], leaves: list[Any], show: Callable[[Any, NkiTensor], Any]) -> Any:
    """What the kernel returned, with arrays in place of its tensors; a returned parameter is the caller's own array.

    Args:
        values: one for each of ``traced.output_buffers``.
        show: makes the array for a returned view of one of them.
    """
    by_buffer = dict(zip(traced.output_buffers, values, strict=True))

    def build(view: NkiTensor) -> Any:
        index = view.storage.input_index
        return leaves[index] if index >= 0 else show(by_buffer[view.storage], view)

    return rebuild(traced.result, [build(view) for view in traced.outputs])


def show_array(flat: torch.Tensor, view: NkiTensor) -> Any:
    """A NumPy array from a buffer's bytes."""
    whole = arrays.to_numpy(flat.view(view._dtype.storage), view._dtype)
    if is_whole(view):
        return whole.reshape(view.shape)
    strides = [stride * whole.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(whole[view.offset :], view.shape, strides).copy()


def show_tensor(whole: torch.Tensor, view: NkiTensor) -> torch.Tensor:
    """A tensor from a buffer's tensor."""
    dtype = arrays.public_dtype(view._dtype)
    if is_whole(view) and whole.dtype == dtype:
        return whole if view.shape == view.storage.shape else whole.reshape(view.shape)
    flat = whole.reshape(-1)
    typed = flat if flat.dtype == dtype else flat.view(dtype)
    return typed.as_strided(view.shape, view.strides, view.offset).contiguous()


def _given_back(traced: TracedKernel, flat: Sequence[torch.Tensor], leaves: list[Any]) -> Any:
    """The result from the bytes of the output buffers: tensors if there is one among the arguments, else NumPy arrays."""
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return assemble(traced, torch_op.typed(traced, flat), leaves, show_tensor)
    return assemble(traced, flat, leaves, show_array)


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


def is_whole(view: NkiTensor) -> bool:
    return view.offset == 0 and view.is_contiguous() and view.size * view.itemsize == view.storage.size * view.storage.dtype.bytes


def trace_kernel(kernel: Kernel, specs: Sequence[Spec], structure: dict[str, Any], on: Target) -> TracedKernel:
    """Runs the kernel function once per core, and the checks that need all of it."""
    shared = SharedBuffers()
    region = MemoryRegion.shared_hbm if kernel.lnc > 1 else MemoryRegion.private_hbm
    names = _names_of(structure, len(specs))
    inputs = [
        Buffer(shared.next_id(), names[k], region, spec.shape or (1,), spec.dtype, "input", input_index=k) for k, spec in enumerate(specs)
    ]
    programs, results, buffers = [], [], dict.fromkeys(inputs)
    written: dict[Buffer, Any] = {}
    for core in range(kernel.lnc):
        tracer = Tracer(kernel.__name__, on, kernel.grid, _program_ids(kernel.grid, core), shared, core)
        tracer.schedule, tracer.beta1 = kernel.schedule, kernel.is_beta1
        if core:
            tracer.check.written.update({b: m for b, m in written.items() if b.region is MemoryRegion.shared_hbm})
        with trace.tracing(tracer):
            arguments = rebuild(structure, [kernel.tensor_class.whole(b) for b in inputs])
            results.append(kernel.finish(_call(kernel, arguments)))
        written = tracer.check.written
        programs.append(tracer.nodes)
        buffers.update(dict.fromkeys(tracer.buffers))
        if tracer.check.mode == "error" and not kernel.is_beta1:
            liveness.check_capacity(tracer.nodes, on)
    if len(programs) > 1 and check.mode() == "error" and not kernel.is_beta1:
        races.check_cores(programs)
    outputs: list[NkiTensor] = []
    result = _outputs(kernel, results[0], outputs, written)
    return TracedKernel(kernel.__name__, on, kernel.lnc, list(buffers), inputs, outputs, programs, result)


def _call(kernel: Kernel, arguments: dict[str, Any]) -> Any:
    args = inspect.BoundArguments(kernel.__signature__, arguments)
    try:
        return kernel.func(*args.args, **args.kwargs)
    except AttributeError as error:
        without = [name for name, value in arguments.items() if value is None]
        if not without or not str(error).startswith("'NoneType'"):
            raise
        text = f"{trace.line_of(error)}: {error}. {kernel.__name__} was called with None for {' and '.join(without)}"
        raise TypeError(f"{text}: pass an array, or let the kernel ask `if {without[0]} is not None`") from error


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
                if check.mode() != "off" and (holes := mask.holes()):
                    text = f"{where} returns {buffer.name}: {holes}. They show what HBM held before; write them, or slice what is returned"
                    warnings.warn(text, NkiWarning, stacklevel=2)
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


def frozen(value: Any) -> Any:
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
        return type(value).__name__, tuple(frozen(v) for v in value)
    if isinstance(value, dict):
        return "dict", tuple((k, frozen(v)) for k, v in value.items())
    if isinstance(value, slice):
        return "slice", frozen(value.start), frozen(value.stop), frozen(value.step)
    if isinstance(value, functools.partial):
        return "partial", value.func, frozen(value.args), frozen(value.keywords)
    if dataclasses.is_dataclass(value) or ("__eq__" not in vars(type(value)) and hasattr(value, "__dict__") and not callable(value)):
        return type(value), tuple((k, frozen(v)) for k, v in sorted(vars(value).items()))
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"a kernel argument of type {type(value).__name__} can neither be hashed nor taken apart; pass numbers or tuples"
        ) from None
    return value


def jit(fn: Any = None, **kwargs: Any) -> Any:
    """Makes a kernel of a function, with or without parentheses.

    Of the arguments of old releases ``platform_target=`` (trn1, trn2, trn3) is what the kernel is traced for unless the environment says
    otherwise; others are ignored.

    Raises:
        TypeError: an unknown argument.
        ValueError: an unknown platform.
    """
    unknown = set(kwargs) - _IGNORED - {"platform_target"}
    if unknown:
        raise TypeError(f"nki.jit got an unexpected keyword argument {sorted(unknown)[0]!r}")
    if fn is None:
        return functools.partial(jit, **kwargs)
    if isinstance(fn, Kernel):
        return fn
    if not callable(fn):
        raise TypeError(f"nki.jit decorates a function, got {type(fn).__name__}")
    platform = kwargs.get("platform_target")
    return Kernel(fn, platform=None if platform is None else target(platform).name)


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
            leaves, structure = wrapped.flatten(args, kwargs)
            traced = wrapped.compiled(specs_of(leaves), structure, wrapped.target()).traced
            ranks.append((traced, Simulator(traced, rank), leaves, [arrays.argument(leaf) for leaf in leaves]))
        results = []
        for _, simulator, _, memory in ranks:
            flat = [torch.empty(b.size * b.dtype.bytes, dtype=torch.uint8) for b in simulator.outputs]
            arrays.settle(memory)
            simulator.start([m.address for m in memory], [_C._nki_address(one) for one in flat])
            results.append(flat)
        with plain_torch():
            run_together([core for _, simulator, _, _ in ranks for core in simulator.cores])
        given_back = []
        for (traced, simulator, leaves, memory), flat in zip(ranks, results, strict=True):
            simulator.finish()
            for index in traced.written_inputs:
                memory[index].copy_back()
            given_back.append(_given_back(traced, flat, leaves))
        return given_back

    return run


__all__ = ["Kernel", "assemble", "jit", "simulate", "simulate_ranks"]
