"""``lower(program)``: a Program becomes a StableHLO module."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import torch
from torch._guards import detect_fake_mode
from torch.utils._pytree import tree_leaves, tree_map

from torch_neuronx.lowering import hlo, symbols
from torch_neuronx.lowering.dtypes import to_jax
from torch_neuronx.lowering.module import module_of
from torch_neuronx.lowering.ops.random import RandomSource
from torch_neuronx.lowering.program import Payload, Program, Slot, TensorMeta
from torch_neuronx.lowering.table import NotLowered
from torch_neuronx.lowering.tracer import Traced, TracedStorage, Tracer
from torch_neuronx.lowering.views import Geometry

# Payloads reach the module in these; a chip has no 64-bit floats.
_PAYLOAD_DTYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_CHIP_PAYLOAD_DTYPES = _PAYLOAD_DTYPES | {float: "float32"}


@dataclass(frozen=True)
class Output:
    """A tensor that the Program returns: ``meta`` on input storage or result number ``index``."""

    on_input: bool
    index: int
    meta: TensorMeta


@dataclass
class Lowered:
    """A StableHLO module and how to call it.

    Parameters: one for each storage of the Program (a contiguous tensor alone on it in its own shape, else one-dimensional), then one
    0-dim array for each payload, then seed and offset (int64) when it ``draws``. Results: ``written`` input storages, each the same
    memory as its parameter, then the fresh storages that ``outputs`` name.
    """

    module: Any
    written: list[int]
    outputs: list[Any]
    parameters: list[tuple[tuple[int, ...], torch.dtype]]
    draws: bool = False  # seed and offset are the last two parameters
    random_words: int = 0
    calls: list[str] = field(default_factory=list)  # overloads that were lowered by the table, in order
    replicas: int = 1  # ranks that run the module together: replica numbers of its collectives are global ranks
    specialised: bool = False  # the payloads' example values are in the module
    lines: list[str | None] = field(default_factory=list)  # Python line of each call of the Program
    result_bytes: list[int] = field(default_factory=list)  # of each result; empty where sizes are symbols

    @property
    def text(self) -> str:
        """The module as MLIR text."""
        return str(self.module)

    def hlo(self) -> bytes:
        """The serialized HloModuleProto, aliases verified.

        Raises AssertionError when the aliases got lost, ValueError when XLA refuses the module.
        """
        return self.hlo_and_text()[0]

    def hlo_and_text(self) -> tuple[bytes, str]:
        """The same, and the module as HLO text."""
        serialized = hlo.to_hlo(self.module)
        text = hlo.hlo_text(serialized)
        wanted = dict(enumerate(self.written))
        found = hlo.aliases_of(text)
        assert found == wanted, f"the module's must-alias pairs are {found}, wanted {wanted}"
        return serialized, text


@contextmanager
def jax_context() -> Iterator[None]:
    """64-bit types, and no Python tracebacks in modules: for this thread and this block only."""
    from jax._src.config import traceback_in_locations_limit

    with jax.enable_x64(True), traceback_in_locations_limit(0):
        yield


def lower(program: Program, target: str = "portable") -> Lowered:
    """Lowers ``program`` for ``target`` ("portable", "trn1", "trn2", "trn3": the latter use the compiler's custom calls).

    Raises:
        NotLowered: a call has no row and no decomposition, or needs a value on the host; it names the call, the reason and the line.
        AssertionError: a lowering's dtypes or shapes are not PyTorch's.
    """
    try:
        return _lower(program, target, specialise=False)
    except NeedsPayload:
        pass
    except _LOOKED_AT:
        if not program.payloads:
            raise
    return _lower(program, target, specialise=True)


# What JAX raises where a lowering looks at the value of an array.
_LOOKED_AT = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError)


class NeedsPayload(Exception):
    """A decomposition looks at a number that comes with each launch."""


def _lower(program: Program, target: str, specialise: bool) -> Lowered:
    run = _Run(program, target, specialise)
    with jax_context():
        shapes = run.parameter_shapes()
        if program.symbolic:
            exported = jax.export.export(jax.jit(run.main, keep_unused=True), platforms=["cpu"])(*shapes)
            module = hlo_module_of(exported)
        else:
            module = module_of(run.main, shapes, real=target != "portable")
    hlo.set_aliases(module, dict(enumerate(run.written)))
    hlo.set_replicas(module, run.tracer.replicas)
    return Lowered(
        module,
        run.written,
        run.outputs,
        run.parameters,
        draws=run.source is not None,
        random_words=run.source.used if run.source else 0,
        calls=run.tracer.calls,
        replicas=run.tracer.replicas,
        specialised=specialise and bool(program.payloads),
        lines=[call.location for call in program.calls],
        result_bytes=run.result_bytes,
    )


def hlo_module_of(exported: Any) -> Any:
    """The MLIR module of a jax.export.Exported."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        return ir.Module.parse(exported.mlir_module())


class _Run:
    """One trace of a Program."""

    def __init__(self, program: Program, target: str, specialise: bool) -> None:
        self.program, self.specialise = program, specialise
        self.tracer = Tracer(target)
        self.written: list[int] = []
        self.outputs: list[Any] = []
        self.parameters: list[tuple[tuple[int, ...], torch.dtype]] = []
        self.result_bytes: list[int] = []
        self.source: RandomSource | None = None
        self.symbols = symbols.Symbols(program) if program.symbolic else None
        self.tracer.symbols = self.symbols
        if self.symbols is not None:
            self.tracer.fake_mode = detect_fake_mode(program.examples)

    def parameter_shapes(self) -> list[Any]:
        """One jax.ShapeDtypeStruct a parameter."""
        shapes: list[Any] = []
        for index, dtype in enumerate(self.program.storages):
            members = [item.meta for item in self.program.inputs if item.storage == index]
            shape = self._storage_shape(members, dtype)
            self.parameters.append((shape, dtype))
            shapes.append(jax.ShapeDtypeStruct(shape, to_jax(dtype)))
        if not self.specialise:
            dtypes = _PAYLOAD_DTYPES if self.tracer.target == "portable" else _CHIP_PAYLOAD_DTYPES
            shapes += [jax.ShapeDtypeStruct((), dtypes[type(value)]) for value in self.program.payloads]
        if self._may_draw():
            shapes += [jax.ShapeDtypeStruct((), "int64")] * 2
        return shapes

    def _storage_shape(self, members: list[TensorMeta], dtype: torch.dtype) -> Any:
        if self.symbols is not None:
            if len(members) != 1 or not _row_major(members[0]):
                raise NotLowered("an input", "with symbolic sizes, inputs must be contiguous and share no storage")
            return self.symbols.dims(members[0].sizes)
        if len(members) == 1 and members[0].dtype == dtype and Geometry(members[0].sizes, members[0].strides, members[0].offset).contiguous:
            return members[0].sizes
        return (-(-max(meta.span * meta.dtype.itemsize for meta in members) // dtype.itemsize),)

    def _may_draw(self) -> bool:
        return self.program.draws and any(torch.Tag.nondeterministic_seeded in getattr(call.op, "tags", ()) for call in self.program.calls)

    def main(self, *parameters: Any) -> tuple[Any, ...]:
        """The JAX function. Fills ``written`` and ``outputs``."""
        number = len(self.program.storages)
        payloads = list(self.program.payloads)
        rest = list(parameters[number:])
        if not self.specialise:
            payloads, rest = rest[: len(payloads)], rest[len(payloads) :]
        if rest:
            self.source = RandomSource(rest[0], rest[1])
        self.payloads = payloads
        self.storage_values = parameters[:number]
        before, RandomSource.current = RandomSource.current, self.source
        try:
            with self.tracer.tracing(every_call=False), torch._C._AutoDispatchBelowAutograd():
                return self._run()
        finally:
            RandomSource.current = before

    def _run(self) -> tuple[Any, ...]:
        env: dict[int, Any] = {}
        bases = self._inputs(env)
        for index, tensor in self.program.constants.items():
            env[index] = self.tracer.lift(tensor)
        for number, call in enumerate(self.program.calls):
            self.tracer.call_number = number
            self._call(call, env)
        self.written = [index for index, storage in enumerate(bases) if storage.written]
        results = [self._stored(bases[index], self.parameters[index][0]) for index in self.written]
        fresh: dict[int, int] = {}
        of_inputs = {id(storage): index for index, storage in enumerate(bases)}

        def told(value: Any) -> Any:
            if isinstance(value, (list, tuple)):  # one eager call may return a list of tensors
                return [told(item) for item in value]
            if not isinstance(value, Traced):
                return value
            meta, key = TensorMeta.of(value.meta), id(value.base)
            if key in of_inputs:
                return Output(True, of_inputs[key], meta)
            if key not in fresh:
                fresh[key] = len(results)
                results.append(self._stored(value.base, _stored_shape(value, self.symbols)))
            return Output(False, fresh[key], meta)

        self.outputs = [told(env[slot.index] if isinstance(slot, Slot) else slot) for slot in self.program.outputs]
        if self.symbols is None:
            self.result_bytes = [math.prod(result.shape) * result.dtype.itemsize for result in results]
        return tuple(results)

    @staticmethod
    def _stored(storage: TracedStorage, shape: tuple[int, ...]) -> Any:
        if storage.geometry.contiguous and storage.value.shape == tuple(shape):
            return storage.value
        return storage.flat().reshape(shape)

    def _inputs(self, env: dict[int, Any]) -> list[TracedStorage]:
        """Traced tensors on the parameters; gives the storages in the Program's order."""
        tracer, bases, metas = self.tracer, [], []
        for index, (value, (shape, dtype)) in enumerate(zip(self.storage_values, self.parameters, strict=True)):
            if self.symbols is not None:
                base = next(e for e, item in zip(self.program.examples, self.program.inputs, strict=True) if item.storage == index)
            else:
                base = torch.empty(shape, dtype=dtype, device="meta")
            bases.append(tracer.wrap(base, value).base)
            metas.append(base)
        for slot, item in enumerate(self.program.inputs):
            base, m = metas[item.storage], item.meta
            if self.symbols is None:
                # A dtype other than the storage's: the same bytes under another name.
                base = base if base.dtype == m.dtype else base.reshape(-1).view(m.dtype)
                with_view = torch.as_strided(base, m.sizes, m.strides, m.offset)
                meta = torch._conj(with_view) if m.conj else with_view
                meta = torch._neg_view(meta) if m.neg else meta
            else:
                meta = base
            made = Traced(meta, bases[item.storage], None)
            made.version = -1
            env[slot] = made
        return bases

    def _call(self, call: Any, env: dict[int, Any]) -> None:
        args, kwargs = tree_map(lambda item: self._argument(item, env, call), (call.args, call.kwargs))
        try:
            result = self._runner(call.op)(args, kwargs)
        except NotLowered as error:
            if call.location and "(at " not in error.reason:
                raise NotLowered(error.op, f"{error.reason} (at {call.location})") from error
            raise
        results = list(result) if isinstance(result, (list, tuple)) else [result] if call.results else []
        if len(call.results) == 1 and len(results) > 1:
            results = [result]
        for index, (slot, value) in enumerate(zip(call.results, results, strict=True)):
            if slot is not None:
                strides = call.strides[index] if call.strides else None
                env[slot.index] = self._restrided(call.op, value, strides) if strides is not None else value

    def _runner(self, op: Any) -> Callable[..., Any]:
        """What runs ``op`` on (args, kwargs); a plain function does arithmetic on sizes."""
        if isinstance(op, torch._ops.OpOverload):
            return functools.partial(self.tracer.call, op)
        if isinstance(op, torch._ops.HigherOrderOperator):
            return functools.partial(self.tracer.higher_order, op)
        return lambda args, kwargs: op(*args, **kwargs)

    def _restrided(self, op: Any, value: Any, strides: tuple[int, ...]) -> Any:
        """A fresh result in the layout that the kernel chooses; meta kernels sometimes say another."""
        if not isinstance(op, torch._ops.OpOverload):
            return value
        fresh = isinstance(value, Traced) and not any(returned.alias_info for returned in op._schema.returns)
        if not fresh or self.symbols is not None or tuple(value.stride()) == strides:
            return value
        meta = torch.empty_strided(value.meta.size(), strides, dtype=value.dtype, device="meta")
        return self.tracer.wrap(meta, value.read())

    def _argument(self, item: Any, env: dict[int, Any], call: Any) -> Any:
        if isinstance(item, Slot):
            return env[item.index]
        if isinstance(item, Payload):
            if not self.specialise and not self._takes_arrays(call.op):
                raise NeedsPayload
            return self.payloads[item.index]
        return item

    def _takes_arrays(self, op: Any) -> bool:
        """A row of the table takes a number as an array; a decomposition may look at it."""
        from torch_neuronx.lowering.schema import functional_overload

        table = self.tracer.table
        if not isinstance(op, torch._ops.OpOverload):
            return False
        if op.name() in table:
            return True
        functional = functional_overload(op) if op._schema.is_mutable else None
        return functional is not None and functional.name() in table


def _stored_shape(value: Traced, known: Any) -> Any:
    """Shape of a fresh result: the tensor's own if it is all of its storage in row-major order, else flat."""
    if known is not None:
        return known.dims(value.meta.shape)
    storage = value.base
    return storage.geometry.sizes if storage.geometry.contiguous else (storage.numel,)


def _row_major(meta: TensorMeta) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(meta.sizes), reversed(meta.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected = expected * size
    return bool(meta.offset == 0)


def to_stablehlo(fn: Callable[..., Any], *tensors: torch.Tensor, target: str = "portable") -> str:
    """MLIR text of ``fn``: ``main`` takes the tensors in order, contiguous in their own shape, and returns the tensors that ``fn`` returns
    (in order, through lists and dicts).

    ``fn`` may be any Python function of tensors, with views, writes and autograd inside; it runs once, on traced tensors. Tensors that it
    closes over become constants, random numbers those of the device's generator as it stands (or of ``torch.initial_seed()``).

    Args:
        tensors: on the CPU or on ``neuron``; only dtype and shape count.
        target: "portable" (plain StableHLO), or "trn1", "trn2", "trn3", which use the compiler's custom calls.

    Raises:
        NotLowered: an operator cannot be lowered, with its name and the reason.
        RuntimeError: ``fn`` writes to a tensor that it closes over, which a module cannot do.
    """
    return str(trace_function(fn, tensors, target)[0])


def trace_function(fn: Callable[..., Any], tensors: Any, target: str = "portable", real: bool | None = None) -> tuple[Any, Any]:
    """The MLIR module of :func:`to_stablehlo`, and what ``fn`` returned with Traced tensors in it.

    ``real``: complex numbers as pairs of real ones (default: for a chip).
    """
    tracer = Tracer(target)
    source = RandomSource(*_generator_state(tensors))
    returned: list[Any] = []

    def main(*values: Any) -> tuple[Any, ...]:
        inputs = [
            tracer.wrap(torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), value).requires_grad_(tensor.requires_grad)
            for tensor, value in zip(tensors, values, strict=True)
        ]
        before, RandomSource.current = RandomSource.current, source
        try:
            # Else torch.cond and its like would start Dynamo, which refuses under a dispatch mode and then never compiles them again.
            with torch.compiler.set_stance("force_eager"), tracer.tracing():
                result = fn(*inputs)
        finally:
            RandomSource.current = before
        if any(lifted.base.written for _, lifted in tracer.lifted.values()):
            raise RuntimeError("the function writes to a tensor that it closes over; pass it as an argument")
        returned.append(result)
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return tuple((leaf if isinstance(leaf, Traced) else tracer.lift(leaf)).read() for leaf in leaves)

    with jax_context():
        shapes = [jax.ShapeDtypeStruct(tuple(tensor.shape), to_jax(tensor.dtype)) for tensor in tensors]
        module = module_of(main, shapes, real=target != "portable" if real is None else real)
    return module, returned[0]


def _generator_state(tensors: Any) -> tuple[int, int]:
    """(seed, offset) of the device's generator where a tensor is on it; else PyTorch's seed and 0."""
    for tensor in tensors:
        if tensor.device.type == "neuron":
            from torch_neuronx.random import default_generators

            state = default_generators()[tensor.device.index or 0].get_state()
            seed, offset = state[:16].view(torch.int64).tolist()
            return seed, offset
    return torch.initial_seed(), 0
