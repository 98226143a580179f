"""Tracing: the kernel function runs once, and what it asks for is written down."""

from __future__ import annotations

import functools
import math
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_neuronx.nki import dtypes
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.instruction import Engine, Instruction, Loop, Node, Register, SourceLine, flatten
from torch_neuronx.nki.memory import AccessPattern, Buffer, MemoryRegion
from torch_neuronx.nki.target import Target
from torch_neuronx.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from torch_neuronx.nki.check import Checker
    from torch_neuronx.nki.opcode import Opcode

_HERE = str(Path(__file__).parent) + "/"
_KERNELS = _HERE + "kernels/"
_active = threading.local()


@dataclass
class TracedKernel:
    """What a kernel is for one set of shapes, dtypes and static arguments on one target."""

    name: str
    target: Target
    lnc: int
    buffers: list[Buffer]
    inputs: list[Buffer]
    outputs: list[NkiTensor]  # leaves of the returned structure
    instructions: list[list[Node]]  # per core
    result: Any = None  # the returned structure, with the positions of leaves in `outputs`
    warnings: list[str] = field(default_factory=list)

    @property
    def output_buffers(self) -> list[Buffer]:
        """What a launch allocates: the memory behind the returned tensors that are not parameters."""
        return [buffer for buffer in self.buffers if buffer.role == "output"]

    @functools.cached_property
    def written_inputs(self) -> list[int]:
        """Which inputs the kernel writes."""
        written = {w.buffer.input_index for nodes in self.instructions for i in flatten(nodes) for w in i.writes}
        return sorted(index for index in written if index >= 0)

    def __str__(self) -> str:
        lines = [f"{self.name} for {self.target.name}, {self.lnc} core(s)"]
        for core, nodes in enumerate(self.instructions):
            lines.append(f"core {core}:")
            lines += [f"  {instruction}  # {instruction.line}" for instruction in flatten(nodes)]
        return "\n".join(lines)


class Tracer:
    """Writes down one core's instructions. There is one per thread while a kernel function runs: :func:`current`."""

    def __init__(
        self, name: str, target: Target, grid: tuple[int, ...], program: tuple[int, ...], shared: SharedBuffers, core: int
    ) -> None:
        from torch_neuronx.nki.check import Checker

        self.name = name
        self.target = target
        self.grid = grid  # () for a launch without a grid
        self.program = program
        self.core = core
        self.cores = math.prod(grid) if grid else 1
        self.shared = shared
        self.nodes: list[Node] = []
        self.buffers: list[Buffer] = []
        self.check: Checker = Checker(self)
        self.chain: list[Instruction] | None = None  # the instructions under no_reorder
        self.schedule: dict[str, list[str]] = {}
        self.named: dict[str, int] = {}
        self.beta1 = False  # the beta-1 front end is in use: less strict about what its compiler arranges
        self.identities: dict[tuple[int, str], NkiTensor] = {}
        self._open: list[list[Node]] = [self.nodes]
        self.loops: list[Loop] = []
        self._whiles: list[tuple[Register, Any, Loop]] = []
        self._count = 0
        self._registers = 0

    # Memory.

    def allocate(
        self,
        shape: Sequence[int],
        dtype: Any,
        region: MemoryRegion,
        name: str = "",
        address: tuple[int, int] | None = None,
        role: str = "scratch",
        partition_dim: int = 0,
    ) -> Buffer:
        """A new uninitialised buffer. The ``n``-th shared HBM buffer of every core is one and the same."""
        buffer = Buffer(
            self.shared.next_id(),
            name or f"t{len(self.buffers)}",
            region,
            tuple(int(n) for n in shape),
            dtypes.dtype(dtype),
            role,
            address,
            self.core,
            partition_dim,
        )
        if region is MemoryRegion.shared_hbm:
            buffer = self.shared.unify(self.core, buffer)
        self.check.allocated(buffer)
        buffer.nesting = self.nesting
        self.buffers.append(buffer)
        return buffer

    def register(self, name: str = "", frozen: bool = False) -> Register:
        self._registers += 1
        return Register(self._registers - 1, frozen, name)

    # Instructions.

    def next_index(self) -> int:
        self._count += 1
        return self._count - 1

    @property
    def nesting(self) -> tuple[int, ...]:
        return tuple(loop.index for loop in self.loops)

    def append(self, instruction: Instruction) -> None:
        """The instruction is legal and complete."""
        if self.chain is not None:
            if self.chain:
                instruction.after.append(self.chain[-1].index)
            self.chain.append(instruction)
        if instruction.name is not None:
            for producer in self.schedule.get(instruction.name, ()):
                if producer in self.named:
                    instruction.after.append(self.named[producer])
            self.named[instruction.name] = instruction.index
        self._open[-1].append(instruction)

    @contextmanager
    def loop(self, **fields: Any) -> Iterator[Loop]:
        """Instructions recorded inside belong to the body of a device loop."""
        if self.chain is not None:
            raise NkiValidationError(f"{where()}a dynamic loop cannot lie inside nl.no_reorder()")
        loop = self.open_loop(**fields)
        try:
            yield loop
        finally:
            self.close_loop(loop)

    def open_loop(self, **fields: Any) -> Loop:
        loop = Loop(self.next_index(), source_line(), **fields)
        self._open[-1].append(loop)
        self._open.append(loop.body)
        self.loops.append(loop)
        return loop

    def close_loop(self, loop: Loop) -> None:
        if not self.loops or self.loops[-1] is not loop:
            raise NkiValidationError(
                f"{loop.line}: dynamic loops must end in the reverse order of their beginning; `break` is not supported"
            )
        self.loops.pop()
        self._open.pop()

    def truth_of(self, register: Register) -> bool:
        """``while register:``, the legacy form of ``nl.while_loop``: its body is traced once."""
        frame = _user_frame()
        site = (frame.f_code, id(frame), frame.f_lineno)
        if self._whiles and self._whiles[-1][0] is register and self._whiles[-1][1] == site:
            _, _, loop = self._whiles.pop()
            self.close_loop(loop)
            return False
        if not _is_while(frame.f_code.co_filename, frame.f_lineno):
            raise TypeError(
                f"{where()}the value of a register is not known while a kernel is traced, so it cannot decide an `if`. "
                "Use nl.while_loop, nl.fori_loop or a predicated instruction"
            )
        self._whiles.append((register, site, self.open_loop(condition=register)))
        return True


class SharedBuffers:
    """Shared HBM of one launch: cores see the same buffers, in the order in which they make them."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._cursor: dict[int, int] = {}
        self._ids = 0

    def next_id(self) -> int:
        self._ids += 1
        return self._ids - 1

    def unify(self, core: int, mine: Buffer) -> Buffer:
        position = self._cursor.get(core, 0)
        self._cursor[core] = position + 1
        if position == len(self.buffers):
            self.buffers.append(mine)
        shared = self.buffers[position]
        if shared.shape != mine.shape or shared.dtype is not mine.dtype:
            raise NkiValidationError(
                f"{where()}the cores of a launch must make the same shared HBM tensors: number {position} is {shared} on core "
                f"{shared.core} and {mine} on core {core}"
            )
        return shared


def current(what: str = "an NKI function") -> Tracer:
    """The trace that is going on in this thread.

    Raises:
        NkiValidationError: none is.
    """
    tracer = active()
    if tracer is None:
        raise NkiValidationError(
            f"{what} was called outside a kernel. Decorate the function with @nki.jit and call it, or use nki.simulate"
        )
    return tracer


def active() -> Tracer | None:
    return getattr(_active, "tracer", None)


@contextmanager
def tracing(tracer: Tracer) -> Iterator[Tracer]:
    previous = active()
    _active.tracer = tracer
    try:
        yield tracer
    finally:
        _active.tracer = previous


def record(
    opcode: Opcode,
    engine: Engine,
    operands: dict[str, Any],
    reads: Sequence[AccessPattern],
    writes: Sequence[AccessPattern],
    attrs: dict[str, Any],
    name: str | None,
    registers: tuple[Sequence[Register], Sequence[Register]] = ((), ()),
) -> Instruction:
    """Appends one instruction to the current trace, after the checks that look at memory."""
    tracer = current(opcode.name)
    instruction = Instruction(
        tracer.next_index(),
        opcode.name,
        engine,
        operands,
        tuple(reads),
        tuple(writes),
        attrs,
        source_line(),
        tracer.core,
        name,
        register_reads=tuple(registers[0]),
        register_writes=tuple(registers[1]),
        accumulator=opcode.accumulator_of(attrs),
        nesting=tracer.nesting,
    )
    tracer.check.instruction(instruction, opcode)
    tracer.append(instruction)
    return instruction


def _user_frame() -> Any:
    """The innermost frame that is the kernel's."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        if _is_the_users(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return frame


def _is_the_users(file: str) -> bool:
    """True for files that are not of this package, but for its kernel library."""
    return (not file.startswith(_HERE) or file.startswith(_KERNELS)) and "contextlib" not in file


def line_of(error: BaseException) -> str:
    """The kernel's ``file:line`` from which ``error`` came."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_the_users(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "a kernel"


def user_stack() -> tuple[tuple[str, int], ...]:
    """``(file, line)`` of the kernel's frames, innermost first: where a statement is, whichever function it is in."""
    found: list[tuple[str, int]] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        if _is_the_users(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def source_line() -> SourceLine:
    frame = _user_frame()
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def where() -> str:
    """The kernel's ``file:line: ``, or nothing outside a trace."""
    return f"{source_line()}: " if active() is not None else ""


def _is_while(file: str, line: int) -> bool:
    import ast
    import linecache

    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.While) and node.lineno <= line <= (node.test.end_lineno or line) for node in ast.walk(tree))
