"""The opcode table: one row per isa function.

A row is made by :func:`opcode` over a function whose signature is the documented one. Calling the row records an instruction::

    @opcode(engines="vector gpsimd", writes="dst", reads="data1 data2", limits=[same_elements])
    def tensor_tensor(dst, data1, data2, op, engine=engine.unknown, name=None):
        '''Element-wise binary op.'''

    @tensor_tensor.semantics
    def _(i, bind):  # called once per binding, gives what a replay calls
        ...
"""

from __future__ import annotations

import ctypes
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_neuronx.nki import dtypes, ops, trace
from torch_neuronx.nki.errors import NkiValidationError, NkiWarning
from torch_neuronx.nki.instruction import Engine, Instruction, Register
from torch_neuronx.nki.memory import AccessPattern
from torch_neuronx.nki.target import TARGETS, Target
from torch_neuronx.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from torch_neuronx.nki.simulator import Binder

OPCODES: dict[str, Opcode] = {}

_OP_PARAMETERS = {"op", "op0", "op1", "reduce_op", "cmp_op", "comp_op0", "comp_op1"}


class Call:
    """One call of a row while it is being checked: ``call["dst"]`` is an operand or an attribute."""

    def __init__(self, row: Opcode, target: Target, values: dict[str, Any]) -> None:
        self.row, self.target = row, target
        self.operands: dict[str, Any] = {}
        self.attrs: dict[str, Any] = {}
        self.registers: tuple[list[Register], list[Register]] = ([], [])
        self.engine = Engine.unknown
        self.extra_reads: list[AccessPattern] = []
        for key, value in values.items():
            if key in row.operand_names:
                self.operands[key] = self._operand(key, value)
            elif key in _OP_PARAMETERS:
                self.attrs[key] = None if value is None else self._op(key, value)
            else:
                self.attrs[key] = float32(value) if type(value) is float else value

    def __getitem__(self, key: str) -> Any:
        return self.operands[key] if key in self.operands else self.attrs[key]

    def access(self, key: str) -> AccessPattern:
        return self.operands[key]

    def _operand(self, key: str, value: Any) -> Any:
        if isinstance(value, NkiTensor):
            return value.access()
        if isinstance(value, AccessPattern | Register | type(None)):
            return value
        if isinstance(value, (list, tuple)):
            return [self._operand(key, item) for item in value]
        number = getattr(value, "item", None)
        if number is not None and not isinstance(value, (int, float)):
            value = number()
        if not isinstance(value, (int, float)):
            self.fail(f"{key} must be a tensor{' or a number' if key in self.row.numbers else ''}, got {type(value).__name__}", TypeError)
        return float32(value) if isinstance(value, float) else value

    def _op(self, key: str, value: Any) -> str:
        try:
            return ops.token(value)
        except TypeError as error:
            return self.fail(f"{key}: {error}", TypeError)

    def fail(self, text: str, kind: type[Exception] = NkiValidationError) -> Any:
        """Refuses the call, with the kernel's line in front."""
        raise kind(f"{trace.where()}{self.row.name} {text}")


def float32(value: float) -> float:
    """The float32 nearest to a Python number: what an instruction can hold."""
    return ctypes.c_float(value).value


Limit = Callable[[Call], None]


class Opcode:
    """A row. ``run`` binds an instruction to memory, ``cost`` (filled by the cost model) tells its cycles."""

    def __init__(
        self,
        function: Callable[..., Any],
        engines: str,
        writes: str,
        reads: str,
        numbers: str,
        limits: Sequence[Limit],
        since: str,
        accumulator: str | None,
        choose: Callable[[Call], Engine] | None,
        generations: dict[str, str],
        read_write: str,
        indirect: str,
    ) -> None:
        self.name = function.__name__
        self.function = function
        self.engines = tuple(Engine[e] for e in engines.split())
        self.writes, self.reads = tuple(writes.split()), tuple(reads.split())
        self.read_write = tuple(read_write.split())  # written operands whose old value matters
        self.indirect = tuple(indirect.split())  # operands that may be `.indirect()` views
        self.numbers = tuple(numbers.split())  # operands that may be a Python number
        self.limits = tuple(limits)
        self.since = TARGETS[since]
        self.accumulator = accumulator
        self.choose = choose
        self.generations = generations  # engine name -> first target on which the row may use it
        self.operand_names = {*self.writes, *self.reads}
        self.run: Callable[[Instruction, Binder], Callable[[], None]] | None = None
        self.cost: Any = None
        self.family = function.__module__.rsplit(".", 1)[-1]
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__
        self.__qualname__ = function.__name__
        self.__signature__ = inspect.signature(function)
        self._names = list(self.__signature__.parameters)
        self._defaults = {k: p.default for k, p in self.__signature__.parameters.items() if p.default is not p.empty}
        self._required = [k for k in self._names if k not in self._defaults]

    def semantics(self, run: Callable[[Instruction, Binder], Callable[[], None]]) -> Callable[[Instruction, Binder], Callable[[], None]]:
        """Decorator: what the row does. Called when a trace is bound to memory; returns the replay's closure."""
        self.run = run
        return run

    def accumulator_of(self, attrs: dict[str, Any]) -> str | None:
        return self.accumulator if self.accumulator and attrs.get("reduce_op", True) is not None else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = self._bind(args, kwargs)
        name = values.pop("name", None)
        call = Call(self, trace.current(f"nki.isa.{self.name}").target, values)
        for key in self._required:
            if call.operands.get(key, key) is None and key not in self.numbers:
                call.fail(f"{key} must be a tensor, got None", TypeError)
        if call.target.generation < self.since.generation:
            call.fail(f"needs {self.since.name} or newer; this kernel is traced for {call.target.name}")
        call.engine = self._engine(call)
        self._settle_indirect(call)
        for limit in self.limits:
            limit(call)
        reads = self._accesses(call, self.reads) + self._accesses(call, self.read_write) + call.extra_reads
        writes = self._accesses(call, self.writes)
        for access in [*reads, *writes]:
            if access.dynamic is not None and isinstance(access.dynamic.value, AccessPattern):
                reads.append(access.dynamic.value)
            elif access.dynamic is not None:
                call.registers[0].append(access.dynamic.value)  # type: ignore[arg-type]
        attrs = {key: value for key, value in call.attrs.items() if key != "engine"}
        return trace.record(self, call.engine, call.operands, reads, writes, attrs, name, call.registers)

    def _settle_indirect(self, call: Call) -> None:
        """Refuses ``.indirect()`` operands where the hardware has none; the snake of their index depends on the engine."""
        for key, operand in call.operands.items():
            if not isinstance(operand, AccessPattern) or operand.dynamic is None or operand.dynamic.kind != "indirect":
                continue
            if key not in self.indirect:
                allowed = f"{' and '.join(self.indirect)} may" if self.indirect else "no operand of it may"
                call.fail(f"{key} cannot be an .indirect() view; {allowed}")
            if call.engine is Engine.tensor:
                call.operands[key] = replace(operand, dynamic=replace(operand.dynamic, group=32))

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._names):
            raise TypeError(f"{trace.where()}{self.name}() takes {len(self._names)} arguments, got {len(args)}")
        values = {**self._defaults, **dict(zip(self._names, args, strict=False))}
        asked: Any = None
        for key, value in kwargs.items():
            if key == "dtype" and key not in self.__signature__.parameters and "dst" in self._names:
                asked = value  # releases before 0.4 had it
                continue
            if key not in self.__signature__.parameters:
                raise TypeError(f"{trace.where()}{self.name}() got an unexpected keyword argument {key!r}. It has {', '.join(self._names)}")
            values[key] = value
        missing = [key for key in self._required if key not in values]
        if missing:
            raise TypeError(f"{trace.where()}{self.name}() misses {', '.join(missing)}")
        if asked is not None and dtypes.dtype(asked).name != getattr(values["dst"], "dtype", None):
            text = f"rounds to the dtype of dst, {values['dst'].dtype}; dtype={asked}, of older releases, is ignored"
            warnings.warn(f"{trace.where()}{self.name}() {text}", NkiWarning, stacklevel=3)
        return values

    def _accesses(self, call: Call, names: Sequence[str]) -> list[AccessPattern]:
        found: list[AccessPattern] = []
        for name in names:
            value = call.operands.get(name)
            found += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, AccessPattern)]
        return found

    def _engine(self, call: Call) -> Engine:
        wanted = call.attrs.get("engine", Engine.unknown)
        if not isinstance(wanted, Engine):
            call.fail(f"engine must be a member of nki.isa.engine, got {wanted!r}", TypeError)
        if wanted is Engine.unknown or Engine.dma in self.engines:
            return self.choose(call) if self.choose else self.engines[0]
        if wanted not in self.engines:
            call.fail(f"cannot run on the {wanted.name} engine; it runs on {', '.join(e.name for e in self.engines)}")
        first = self.generations.get(wanted.name)
        if first and call.target.generation < TARGETS[first].generation:
            call.fail(f"runs on the {wanted.name} engine from {first} on; this kernel is traced for {call.target.name}")
        return wanted

    def __repr__(self) -> str:
        return f"<nki.isa.{self.name}>"


def opcode(
    engines: str,
    writes: str = "dst",
    reads: str = "",
    numbers: str = "",
    limits: Sequence[Limit] = (),
    since: str = "trn1",
    accumulator: str | None = None,
    choose: Callable[[Call], Engine] | None = None,
    generations: dict[str, str] | None = None,
    read_write: str = "",
    indirect: str = "",
) -> Callable[[Callable[..., Any]], Opcode]:
    """Makes a row of the table; see the module's docstring. Names are given as one string, separated by spaces."""

    def make(function: Callable[..., Any]) -> Opcode:
        row = Opcode(function, engines, writes, reads, numbers, limits, since, accumulator, choose, generations or {}, read_write, indirect)
        OPCODES[row.name] = row
        return row

    return make
