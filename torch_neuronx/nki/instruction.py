"""Instruction, Loop, Register: what a kernel becomes."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.memory import AccessPattern


class Engine(enum.IntEnum):
    """An engine of a NeuronCore; the values are those of ``nki.isa.engine``."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class SourceLine(NamedTuple):
    """Where in the user's code an instruction was written."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(eq=False)
class Register:
    """A scalar register of an engine's sequencer, or the counter of a device loop (``frozen``)."""

    index: int
    frozen: bool = False
    name: str = ""

    def __bool__(self) -> bool:
        from torch_neuronx.nki import trace

        return trace.current("the truth of a register").truth_of(self)

    def __index__(self) -> int:
        raise TypeError("the value of a register is not known while a kernel is traced; use nl.fori_loop, or a dynamic offset (nl.ds, .ap)")

    def __repr__(self) -> str:
        return f"r{self.index}"


Operand = AccessPattern | Register | float | int | None


@dataclass(eq=False)
class Instruction:
    """One use of a row of the opcode table. Nobody changes it once the trace has ended."""

    index: int
    opcode: str
    engine: Engine
    operands: dict[str, Operand]  # by the parameter names of the isa function
    reads: tuple[AccessPattern, ...]
    writes: tuple[AccessPattern, ...]
    attrs: dict[str, Any]  # op tokens by name, flags, shapes
    line: SourceLine
    core: int = 0
    name: str | None = None
    after: list[int] = field(default_factory=list)  # indices of instructions that it waits for explicitly
    register_reads: tuple[Register, ...] = ()
    register_writes: tuple[Register, ...] = ()
    accumulator: str | None = None  # "scalar" or "vector": the reduce registers that it uses
    nesting: tuple[int, ...] = ()  # indices of the device loops around it

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={value}" for name, value in self.operands.items() if value is not None)
        return f"[{self.index}] {self.engine.name}.{self.opcode}({shapes})"

    def accesses(self, *names: str) -> list[AccessPattern]:
        """The operands of these names, which are tiles or HBM tensors, not numbers."""
        found = [self.operands[name] for name in names]
        assert all(isinstance(operand, AccessPattern) for operand in found)
        return found  # type: ignore[return-value]

    def depends_on(self, *producers: Instruction) -> Instruction:
        """Makes this instruction wait for ``producers`` (instructions of the same loop nesting); returns itself."""
        for producer in producers:
            if not isinstance(producer, Instruction):
                raise TypeError(f"depends_on takes instructions, not {type(producer).__name__}")
            if producer.nesting != self.nesting:
                raise NkiValidationError(f"{self.line}: depends_on: {producer.opcode} and {self.opcode} lie in different dynamic loops")
            self.after.append(producer.index)
        return self

    def must_follow(self, earlier: Instruction) -> bool:
        """True when it must run after ``earlier``, which comes before it in program order."""
        if earlier.index in self.after:
            return True
        if self.accumulator is not None and self.accumulator == earlier.accumulator:
            return True
        if any(r in earlier.register_writes for r in self.register_reads + self.register_writes):
            return True
        if any(r in earlier.register_reads for r in self.register_writes):
            return True
        for write in earlier.writes:
            if any(write.overlaps(mine) for mine in self.reads) or any(write.overlaps(mine) for mine in self.writes):
                return True
        return any(read.overlaps(mine) for read in earlier.reads for mine in self.writes)


@dataclass(eq=False)
class Loop:
    """A device loop. Counted: ``counter`` runs from ``start`` to ``stop`` by ``step``. Otherwise ``condition`` is read before each turn."""

    index: int
    line: SourceLine
    body: list[Instruction | Loop] = field(default_factory=list)
    counter: Register | None = None
    start: int | Register = 0
    stop: int | Register = 0
    step: int = 1
    condition: Register | None = None
    next_condition: Register | None = None  # what `while_loop`'s body returns


Node = Instruction | Loop


def flatten(nodes: Sequence[Node]) -> Iterator[Instruction]:
    """All instructions in program order, the bodies of loops once."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from flatten(node.body)
        else:
            yield node


def dependencies(nodes: Sequence[Node]) -> dict[int, list[int]]:
    """For each instruction the indices of the earlier ones it waits for, without those implied by others on the same buffer.

    Linear in practice: per buffer only accesses since its last full overwrite are compared.
    """
    found: dict[int, list[int]] = {}
    history: dict[object, list[tuple[Instruction, AccessPattern | None, bool]]] = {}
    for instruction in flatten(nodes):
        waits = set(instruction.after)
        touched: list[tuple[object, AccessPattern | None, bool]] = []
        touched += [(access.buffer.storage_key, access, False) for access in instruction.reads]
        touched += [(access.buffer.storage_key, access, True) for access in instruction.writes]
        touched += [(register, None, False) for register in instruction.register_reads]
        touched += [(register, None, True) for register in instruction.register_writes]
        if instruction.accumulator is not None:
            touched.append((instruction.accumulator, None, True))
        for key, access, is_write in touched:
            for earlier, other, was_write in reversed(history.get(key, [])):
                if not (is_write or was_write) or earlier is instruction:
                    continue
                if access is None or other is None or access.overlaps(other):
                    waits.add(earlier.index)
        for key, access, is_write in touched:
            past = history.setdefault(key, [])
            if is_write and (access is None or (access.covers_buffer and not access.buffer.is_aliased)):
                past.clear()
            past.append((instruction, access, is_write))
        found[instruction.index] = sorted(waits)
    return found
