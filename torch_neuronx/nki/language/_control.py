"""Loops, order, the grid, printing, objects."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_neuronx.nki import numerics, trace
from torch_neuronx.nki.errors import NkiValidationError, NkiWarning
from torch_neuronx.nki.instruction import Instruction, Register
from torch_neuronx.nki.memory import AccessPattern
from torch_neuronx.nki.opcode import opcode
from torch_neuronx.nki.simulator import Binder, Step
from torch_neuronx.nki.tensor import DynamicSlice, NkiTensor


def ds(start: Any, size: int) -> DynamicSlice:
    """``size`` elements from ``start``, which may be a register or a one-element tile."""
    return DynamicSlice(start, size)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """``range``: the loop is unrolled while the kernel is traced."""
    return range(start) if stop is None else range(start, stop, step)


sequential_range = static_range = affine_range


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[Register]:
    """A device loop in the legacy form; the body is traced once, with a register as the counter."""
    if stop is None:
        start, stop = 0, start
    tracer = trace.current("nl.dynamic_range")
    _check_step(step)
    loop = tracer.open_loop(counter=tracer.register("i", frozen=True), start=start, stop=stop, step=step)
    assert loop.counter is not None
    yield loop.counter
    tracer.close_loop(loop)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Register], Any], step: int = 1) -> None:
    """A device loop: ``body_fun(i)`` for ``lower <= i < upper``; bounds are ints or registers, ``i`` is a register."""
    tracer = trace.current("nl.fori_loop")
    _check_step(step)
    with tracer.loop(counter=tracer.register("i", frozen=True), start=lower, stop=upper, step=step) as loop:
        assert loop.counter is not None
        if body_fun(loop.counter) is not None:
            raise NkiValidationError(f"{loop.line}: the body of nl.fori_loop returns nothing; keep state in SBUF or HBM")


def while_loop(init: Register, body_fun: Callable[[Register], Register]) -> None:
    """A device loop: ``body_fun(r)`` while the register is not 0; it returns the register of the next condition."""
    tracer = trace.current("nl.while_loop")
    if not isinstance(init, Register):
        raise TypeError(f"{trace.where()}nl.while_loop takes a register, got {type(init).__name__}")
    from torch_neuronx.nki import isa

    condition = tracer.register("condition")
    isa.register_move(condition, init)
    with tracer.loop(condition=condition) as loop:
        following = body_fun(condition)
        if not isinstance(following, Register):
            raise NkiValidationError(f"{loop.line}: the body of nl.while_loop returns the register of the next condition")
        loop.next_condition = following


def _check_step(step: Any) -> None:
    if not isinstance(step, int) or step < 1:
        raise NkiValidationError(f"{trace.where()}the step of a dynamic loop is a positive compile-time int, got {step!r}")


@contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions inside keep their order: each waits for the one before."""
    tracer = trace.current("nl.no_reorder")
    if tracer.chain is not None:  # already inside one
        yield
        return
    tracer.chain = []
    try:
        yield
    finally:
        tracer.chain = None


def program_id(axis: int = 0) -> int:
    """The index of this core, or program, along an axis of the grid."""
    tracer = trace.current("nl.program_id")
    if not tracer.grid:
        return 0
    if not 0 <= axis < len(tracer.grid):
        raise NkiValidationError(f"{trace.where()}program_id: axis {axis} of a grid with {len(tracer.grid)} axes")
    return tracer.program[axis]


def num_programs(axes: Any = 0) -> Any:
    """The number of cores, or programs, along an axis of the grid; a list of axes gives a tuple."""
    tracer = trace.current("nl.num_programs")
    if isinstance(axes, (tuple, list)):
        return tuple(num_programs(axis) for axis in axes)
    return tracer.grid[axes] if axes < len(tracer.grid) else 1


def program_ndim() -> int:
    """The number of axes of the grid; 0 without one."""
    return len(trace.current("nl.program_ndim").grid)


@opcode("sync", writes="", reads="tensor")
def device_print(print_prefix: str, tensor: NkiTensor, name: str | None = None) -> None:
    """Prints a tensor when the kernel runs."""


@device_print.semantics
def _(i: Instruction, bind: Binder) -> Step:
    access, prefix = i.operands["tensor"], i.attrs["print_prefix"]
    assert isinstance(access, AccessPattern)
    load, dtype = bind.raw(access), access.dtype

    def step() -> None:
        values = load() if dtype.kind == "packed" else numerics.to_float(load(), dtype)
        sys.stdout.write(f"{prefix} {values.tolist() if values.numel() <= 64 else values}\n")

    return step


class _Forgiving(abc.ABCMeta):
    """Dataclasses of which AWS's front end lets fields without a default be left out, and takes attributes without a type for fields. Its
    library does both."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        # A class may have an __init__ of its own; the one that dataclass() writes comes from no file.
        untyped: dict[str, Any] = {}
        if dataclasses.is_dataclass(cls) and cls.__init__.__code__.co_filename == "<string>":
            known = {field.name for field in dataclasses.fields(cls)}
            untyped = {name: kwargs.pop(name) for name in [*kwargs] if name not in known and _is_plain_attribute(cls, name)}
            fields = [field for field in dataclasses.fields(cls) if field.init][len(args) :]
            none = dataclasses.MISSING
            missing = [f.name for f in fields if f.default is none and f.default_factory is none and f.name not in kwargs]
            if missing:
                warnings.warn(f"{cls.__name__}: {', '.join(missing)} not given, so None", NkiWarning, stacklevel=2)
                kwargs.update(dict.fromkeys(missing))
        made = super().__call__(*args, **kwargs)
        for name, value in untyped.items():
            object.__setattr__(made, name, value)  # of a frozen dataclass, too
        return made


def _is_plain_attribute(cls: type, name: str) -> bool:
    missing = object()
    value = inspect.getattr_static(cls, name, missing)
    return value is not missing and not callable(value) and not hasattr(value, "__get__")


class NKIObject(metaclass=_Forgiving):
    """The base of classes whose objects go in and out of kernels. Without ``@dataclass``, fields are keyword arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fields: dict[str, Any] = {}
        for base in reversed(type(self).__mro__):
            for field in inspect.get_annotations(base):
                fields[field] = getattr(type(self), field, dataclasses.MISSING)
        given = {**dict(zip(fields, args, strict=False)), **kwargs}
        for field, default in fields.items():
            if field in given or default is not dataclasses.MISSING:
                setattr(self, field, given.pop(field, default))
        for field, value in given.items():
            setattr(self, field, value)
        if hasattr(self, "__post_init__"):
            self.__post_init__()
