"""A traced kernel bound to memory, and its replay.

Binding goes through the instructions once and keeps what each row's ``run`` returns; a replay calls these one after the other. Views are
made while binding. HBM tensors that come from the caller are *slots*: views exist before the memory does, a replay only points them at it.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_neuronx.nki import numerics
from torch_neuronx.nki.dtypes import DType
from torch_neuronx.nki.dynamic_access import DynamicAccess
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.host import one_thread, plain_torch
from torch_neuronx.nki.instruction import Instruction, Loop, Node, Register, flatten
from torch_neuronx.nki.liveness import Lifetime, lifetimes
from torch_neuronx.nki.memory import AccessPattern, Buffer, MemoryRegion, common_shape
from torch_neuronx.nki.opcode import OPCODES
from torch_neuronx.nki.target import PARTITIONS, PSUM_BYTES
from torch_neuronx.nki.trace import TracedKernel

Step = Callable[[], Any]
Load = Callable[[], torch.Tensor]
Store = Callable[[torch.Tensor], None]

_ARENA_PADDING = 64  # bytes between partitions, so that they do not all fall into the same cache sets


@dataclass
class Rendezvous:
    """An instruction at which cores wait for one another. ``act`` gets those of all cores at once."""

    instruction: Instruction
    binder: Binder
    act: Callable[[list[Rendezvous]], None]


Steps = list["Step | Rendezvous | _BoundLoop"]


@dataclass
class _BoundLoop:
    loop: Loop
    body: Steps
    registers: dict[Register, int]

    def turns(self) -> Generator[None, None, None]:
        """Sets the registers for each turn."""
        loop, registers = self.loop, self.registers
        if loop.counter is not None:
            start = registers[loop.start] if isinstance(loop.start, Register) else loop.start
            stop = registers[loop.stop] if isinstance(loop.stop, Register) else loop.stop
            for value in range(start, stop, loop.step):
                registers[loop.counter] = value
                yield
            return
        assert loop.condition is not None
        while registers[loop.condition]:
            yield
            if loop.next_condition is not None:
                registers[loop.condition] = registers[loop.next_condition]


class Simulator:
    """A TracedKernel with memory of its own for everything on chip. One call at a time. ``rank``: of several that run together."""

    def __init__(self, traced: TracedKernel, rank: int = 0) -> None:
        from torch_neuronx import _C

        self.rank = rank

        self.traced = traced
        self._point: Callable[..., None] = _C._nki_point_slot
        self.slots: dict[Buffer, torch.Tensor] = {}
        self._make_slot: Callable[[int], torch.Tensor] = _C._nki_make_slot
        self._lock = threading.RLock()
        self.outputs = traced.output_buffers
        self.shared: dict[Buffer, torch.Tensor] = {}
        self.cores = [Binder(self, core, nodes) for core, nodes in enumerate(traced.instructions)]
        self._meet = any(c.meets for c in self.cores)

    def slot(self, buffer: Buffer) -> torch.Tensor:
        if buffer not in self.slots:
            self.slots[buffer] = self._make_slot(buffer.size * buffer.dtype.bytes)
        return self.slots[buffer]

    def run(self, inputs: Sequence[int], results: Sequence[int]) -> None:
        """Replays the kernel once.

        Args:
            inputs: addresses of contiguous memory (``_C._nki_address``), in the order of ``traced.inputs``; the kernel writes to it.
            results: those of memory that it fills, one for each of ``self.outputs``.
        """
        with self._lock, plain_torch(), one_thread():
            self._run(inputs, results)

    def _run(self, inputs: Sequence[int], results: Sequence[int]) -> None:
        self.start(inputs, results)
        try:
            if len(self.cores) > 1 or self._meet:
                run_together(self.cores)
            else:
                for core in self.cores:
                    core.execute(core.steps)
        finally:
            self.finish()

    def start(self, inputs: Sequence[int], results: Sequence[int]) -> None:
        for buffer, address in (*zip(self.traced.inputs, inputs, strict=True), *zip(self.outputs, results, strict=True)):
            if buffer in self.slots:
                self._point(self.slots[buffer], address)
        for buffer in self.outputs:
            if buffer.needs_fill and buffer.size:
                fill_unwritten(self.slot(buffer).view(buffer.dtype.storage), buffer.dtype)
        for core in self.cores:
            core.reset()

    def finish(self) -> None:
        for slot in self.slots.values():
            self._point(slot, 0)


def fill_unwritten(view: torch.Tensor, dtype: DType) -> None:
    """What fresh memory holds: NaN, or 4 for integers, so that reading it shows."""
    if dtype.name == "float8_e4m3":
        view.fill_(0x7F)
    elif dtype.kind == "packed":
        view.fill_(0)
    elif dtype.is_float:
        view.fill_(math.nan)
    else:
        view.fill_(4)


def run_together(cores: Sequence[Binder]) -> None:
    """Runs cores, of one rank or of several, side by side: one instruction each in turn, up to each point where they meet.

    Raises:
        NkiValidationError: a core waits for one that has ended, or that waits elsewhere.
    """
    running = {core: core.iterate(core.steps) for core in cores}
    waiting: dict[Binder, Rendezvous] = {}
    while running or waiting:
        moved = False
        for core in [c for c in running if c not in waiting]:
            moved = True
            try:
                arrived = next(running[core])
            except StopIteration:
                del running[core]
                continue
            if arrived is not None:
                waiting[core] = arrived
        met = _those_who_met(cores, waiting) if waiting else []
        if met:
            met[0].act(met)
            for meeting in met:
                del waiting[meeting.binder]
        elif waiting and not moved:
            lines = ", ".join(sorted({f"{w.instruction.opcode} at {w.instruction.line}" for w in waiting.values()}))
            raise NkiValidationError(f"the cores took different paths and wait for each other for ever: {lines}")


def _those_who_met(cores: Sequence[Binder], waiting: dict[Binder, Rendezvous]) -> list[Rendezvous]:
    """All cores of a rank that wait in one instruction, or all cores of all ranks in one collective."""
    for simulator in dict.fromkeys(core.simulator for core in cores):
        mine = [waiting.get(core) for core in simulator.cores]
        here = [m for m in mine if m is not None]
        if len(here) == len(mine) and len({m.instruction.opcode for m in here}) == 1 and not here[0].instruction.attrs.get("collective"):
            return here
    everyone = list(waiting.values())
    if (
        len(everyone) == len(cores)
        and len({m.instruction.opcode for m in everyone}) == 1
        and everyone[0].instruction.attrs.get("collective")
    ):
        return everyone
    return []


class Binder:
    """Memory and closures of one core. Rows use it while they are bound."""

    def __init__(self, simulator: Simulator, core: int, nodes: Sequence[Node]) -> None:
        self.simulator = simulator
        self.target = simulator.traced.target
        self.core = core
        self.registers: dict[Register, int] = defaultdict(int)
        self.accumulators: dict[str, torch.Tensor] = {name: torch.zeros(PARTITIONS, dtype=torch.float32) for name in ("scalar", "vector")}
        self.meets = False
        self._storage: dict[Buffer, torch.Tensor] = {}
        self._arenas: dict[MemoryRegion, torch.Tensor] = {}
        self._pool: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._lives: dict[Buffer, Lifetime] = lifetimes(nodes)
        self._position = 0
        self._dying: dict[int, list[Buffer]] = defaultdict(list)
        for buffer, life in self._lives.items():
            self._dying[life.last].append(buffer)
        self._filled: set[Buffer] = set()
        self._derived: dict[Any, torch.Tensor] = {}
        self._history: dict[Buffer, torch.Tensor] = {}
        self.steps = self._bind(nodes)

    def reset(self) -> None:
        for mask in self._history.values():
            mask.zero_()

    # Program.

    def _bind(self, nodes: Sequence[Node]) -> Steps:
        steps: Steps = []
        for node in nodes:
            if isinstance(node, Loop):
                self._derived.clear()  # what a turn finds depends on the turn before
                used = dict.fromkeys(a.buffer for i in flatten(node.body) for a in (*i.reads, *i.writes))
                outer = [buffer for buffer in used if node.index not in buffer.nesting]
                for buffer in outer:
                    self._bytes_of(buffer)  # before the body's own tensors, which may share memory among themselves
                steps += self._fills(outer)
                steps.append(_BoundLoop(node, self._bind(node.body), self.registers))
                self._derived.clear()
                continue
            touched = dict.fromkeys(access.buffer for access in (*node.reads, *node.writes))
            for buffer in touched:
                self._bytes_of(buffer)  # now, whenever the row looks at it: what dies here must not give it its memory
            steps += self._fills(touched)
            run = OPCODES[node.opcode].run
            assert run is not None, f"{node.opcode} has no semantics"
            bound: Any = run(node, self)
            steps += bound if isinstance(bound, list) else [bound]
            self.meets = self.meets or isinstance(steps[-1], Rendezvous)
            self._forget_derived(node)
            for buffer in self._dying.get(self._position, ()):
                self._release(buffer)
            self._position += 1
        return steps

    def _fills(self, buffers: Iterable[Buffer]) -> list[Step]:
        """Fresh memory is filled where reading it would show; otherwise nobody can tell. Shared memory is not this core's alone."""
        found: list[Step] = []
        for buffer in buffers:
            if (
                buffer.needs_fill
                and buffer.role == "scratch"
                and buffer.region is not MemoryRegion.shared_hbm
                and buffer not in self._filled
            ):
                self._filled.add(buffer)
                whole = AccessPattern(buffer, buffer.dtype, 0, ((buffer.free, buffer.partitions), (1, buffer.free)))
                found.append(functools.partial(fill_unwritten, self.view(whole), buffer.dtype))
        return found

    def execute(self, steps: Steps) -> None:
        """Runs to the end, without meeting other cores."""
        for step in steps:
            if isinstance(step, _BoundLoop):
                for _ in step.turns():
                    self.execute(step.body)
            elif isinstance(step, Rendezvous):
                step.act([step])
            else:
                step()

    def iterate(self, steps: Steps) -> Generator[Rendezvous | None, None, None]:
        """The same, one instruction at a time; a Rendezvous where cores meet."""
        for step in steps:
            if isinstance(step, _BoundLoop):
                for _ in step.turns():
                    yield from self.iterate(step.body)
            elif isinstance(step, Rendezvous):
                yield step
            else:
                step()
                yield None

    # Memory.

    def _bytes_of(self, buffer: Buffer) -> torch.Tensor:
        """The buffer's memory as a flat uint8 tensor; for one at an address, the whole arena."""
        if buffer not in self._storage:
            self._storage[buffer] = self._find_memory(buffer)
        return self._storage[buffer]

    def _find_memory(self, buffer: Buffer) -> torch.Tensor:
        if buffer.role in ("input", "output"):
            return self.simulator.slot(buffer)
        if buffer.role == "constant":
            return buffer.constant.contiguous().view(torch.uint8).reshape(-1)
        if buffer.address is not None:
            return self._arena(buffer.region)
        size = -(-buffer.size * buffer.dtype.bytes // 64) * 64
        if buffer.region is MemoryRegion.shared_hbm:
            if buffer not in self.simulator.shared:
                self.simulator.shared[buffer] = torch.zeros(size, dtype=torch.uint8)
                fill_unwritten(self.simulator.shared[buffer].view(buffer.dtype.storage), buffer.dtype)
            return self.simulator.shared[buffer]
        return self._pool[size].pop() if self._pool[size] else torch.zeros(size, dtype=torch.uint8)

    def _release(self, buffer: Buffer) -> None:
        if buffer.role == "scratch" and buffer.address is None and buffer.region is not MemoryRegion.shared_hbm:
            memory = self._storage.get(buffer)
            if memory is not None:
                self._pool[memory.numel()].append(memory)

    def _arena(self, region: MemoryRegion) -> torch.Tensor:
        if region not in self._arenas:
            self._arenas[region] = torch.zeros(PARTITIONS * self._pitch(region), dtype=torch.uint8)
        return self._arenas[region]

    def _pitch(self, region: MemoryRegion) -> int:
        """Bytes from one partition to the next."""
        return (PSUM_BYTES if region is MemoryRegion.psum else self.target.sbuf_bytes) + _ARENA_PADDING

    def flat(self, access: AccessPattern) -> torch.Tensor:
        """All elements of the access's memory, one-dimensional, in its storage dtype."""
        memory = self._bytes_of(access.buffer)
        whole = memory.numel() // access.itemsize * access.itemsize
        return memory[:whole].view(access.dtype.storage)

    def place(self, access: AccessPattern, offset: int, strides: Sequence[int]) -> tuple[int, list[int]]:
        """Offset and strides in :meth:`flat`, where partitions of addressed buffers lie a pitch apart."""
        buffer = access.buffer
        if buffer.address is None:
            return offset, list(strides)
        free, pitch = access.buffer_free, self._pitch(buffer.region) // access.itemsize
        row, column = divmod(offset, free)
        start = (buffer.address[0] + row) * pitch + buffer.address[1] // access.itemsize + column
        return start, [s // free * pitch if s and s % free == 0 else s for s in strides]

    def shape(self, *accesses: AccessPattern) -> tuple[int, ...]:
        """A shape in which all can be walked together; flat when there is no other."""
        first = accesses[0]
        shape = common_shape(accesses) or (first.partitions, first.free_size)
        return (1, *shape) if first.region.on_chip and first.partitions == 1 else shape  # dim 0 is the partitions'

    def view(self, access: AccessPattern, shape: Sequence[int] | None = None) -> torch.Tensor:
        """A view of a static access.

        Raises:
            NkiValidationError: the pattern cannot be walked in ``shape``: use :meth:`raw`.
        """
        view = self._try_view(access, tuple(shape) if shape is not None else access.shape)
        if view is None:
            raise NkiValidationError(f"{access} cannot be viewed as {shape}")
        return view

    def _try_view(self, access: AccessPattern, shape: tuple[int, ...]) -> torch.Tensor | None:
        if access.dynamic is not None or any(stride < 0 for stride, _ in access.pattern):
            return None
        strides = [s for s, _ in access.pattern] if shape == access.shape else access.split(shape)
        if strides is None:
            return None
        offset, placed = self.place(access, access.offset, strides)
        return self.flat(access).as_strided(shape, placed, offset)

    # Operands. A load gives a tensor when the replay asks for it, a store takes one.

    def number(self, value: Any) -> Callable[[], int]:
        """The value of a register, or of a one-element access, when the replay asks."""
        if isinstance(value, Register):
            registers = self.registers
            return lambda: registers[value]
        if isinstance(value, AccessPattern):
            load, dtype = self.raw(value, (1,)), value.dtype
            return lambda: int(numerics.as_integers(load(), dtype)) if dtype.is_integer else int(numerics.to_float(load(), dtype))
        return lambda: int(value)

    def raw(self, access: AccessPattern, shape: Sequence[int] | None = None) -> Load:
        """Loads the stored values."""
        wanted = tuple(shape) if shape is not None else access.shape
        view = self._try_view(access, wanted)
        if view is not None:
            return lambda: view
        if access.dynamic is None:
            ascending, turned = access.ascending()
            whole = self.view(ascending)
            return (lambda: whole.flip(turned).reshape(wanted)) if turned else (lambda: whole.reshape(wanted))
        load = DynamicAccess(self, access).load
        return (lambda: load().reshape(wanted)) if wanted != access.shape else load

    def raw_store(self, access: AccessPattern, shape: Sequence[int] | None = None) -> Store:
        """Stores values of the storage dtype."""
        wanted = tuple(shape) if shape is not None else access.shape
        view = self._try_view(access, wanted)
        if view is not None:
            return _writer(view)
        own = access.shape
        if access.dynamic is None:
            ascending, turned = access.ascending()
            write = _writer(self.view(ascending))
            return lambda x: write(x.expand(wanted).reshape(own).flip(turned) if turned else x.expand(wanted).reshape(own))
        store = DynamicAccess(self, access).store
        return lambda x: store(x.expand(wanted).reshape(own))

    def load(self, access: AccessPattern, shape: Sequence[int] | None = None) -> Load:
        """Loads float32."""
        raw, dtype = self.raw(access, shape), access.dtype
        if dtype.name in ("float32", "tfloat32"):
            return raw
        if dtype.name in ("bfloat16", "float16"):
            return lambda: raw().float()
        return lambda: numerics.to_float(raw(), dtype)

    def store(self, access: AccessPattern, shape: Sequence[int] | None = None) -> Store:
        """Rounds float32 and stores it."""
        dtype = access.dtype
        if dtype.name in numerics.DIRECT and not numerics.stochastic_rounding():
            view = self._try_view(access, tuple(shape) if shape is not None else access.shape)
            if view is not None:
                return _writer(view)
        put = self.raw_store(access, shape)
        return lambda x: put(numerics.from_float(x, dtype))

    def per_partition(self, value: Any, rank: int) -> Callable[[], Any]:
        """A number, or the ``[P, 1]`` operand as float32 that broadcasts over ``rank`` dimensions."""
        if not isinstance(value, AccessPattern):
            constant = float(value) if value is not None else None
            return lambda: constant
        return self.load(value, (value.partitions, *(1,) * (rank - 1)))

    def direct(self, access: AccessPattern, shape: Sequence[int], *others: AccessPattern) -> torch.Tensor | None:
        """The view that a PyTorch kernel may write itself: of a dtype that it rounds to, and not lying partly over an operand."""
        if access.dtype.name not in numerics.DIRECT or numerics.stochastic_rounding():
            return None
        for other in others:
            same = other.buffer is access.buffer and other.offset == access.offset and other.pattern == access.pattern
            if not same and other.overlaps(access):
                return None
        view = self._try_view(access, tuple(shape))
        return None if view is None or _repeats(view) else view

    # Copies of operands in another form, kept as long as the operand does not change.

    def derived(self, access: AccessPattern, kind: str, make: Callable[[], torch.Tensor], fill: Callable[[torch.Tensor], None]) -> Any:
        """``(tensor, steps)``: the tensor that ``fill`` writes from the access, and the steps to run first (none while it is current)."""
        key = (access.buffer, access.offset, access.pattern, access.dtype.name, kind)
        if key in self._derived:
            return self._derived[key], []
        memory = (self._bytes_of(access.buffer).data_ptr() or id(access.buffer), access.offset, access.pattern, access.dtype.name, kind)
        tensors = self.__dict__.setdefault("_derived_memory", {})
        if memory not in tensors:
            tensors[memory] = make()
        tensor = tensors[memory]
        for other in [k for k, t in self._derived.items() if t is tensor]:
            del self._derived[other]
        self._derived[key] = tensor
        return tensor, [lambda: fill(tensor)]

    def _forget_derived(self, node: Instruction) -> None:
        if not self._derived:
            return
        for write in node.writes:
            if write.buffer.address is not None:
                stale = [key for key in self._derived if key[0].storage_key == write.buffer.storage_key]
            else:
                stale = [key for key in self._derived if key[0] is write.buffer]
            for key in stale:
                del self._derived[key]

    def matmul_history(self, buffer: Buffer) -> torch.Tensor:
        """One flag per element: has a matmul written it in this run?"""
        if buffer not in self._history:
            self._history[buffer] = torch.zeros(buffer.size, dtype=torch.bool)
        return self._history[buffer]

    def accumulator(self, which: str, access: AccessPattern) -> torch.Tensor:
        """The reduce registers of the partitions that ``access`` lies on."""
        return self.accumulators[which][access.start_partition : access.start_partition + access.partitions]


def _repeats(view: torch.Tensor) -> list[int]:
    """The dimensions along which all elements are one and the same."""
    return [dim for dim, (count, stride) in enumerate(zip(view.shape, view.stride(), strict=True)) if stride == 0 and count > 1]


def _writer(view: torch.Tensor) -> Store:
    """Writes into a view. Where elements share an address (kernels throw results away so), the last one stays."""
    repeats = _repeats(view)
    if not repeats:
        return lambda x: _copy(view, x)

    def last(x: torch.Tensor) -> torch.Tensor:
        x = x.expand(view.shape)
        for dim in repeats:
            x = x.narrow(dim, x.shape[dim] - 1, 1)
        return x

    place = last(view)
    return lambda x: _copy(place, last(x))


def _copy(view: torch.Tensor, x: torch.Tensor) -> None:
    view.copy_(x)


__all__ = ["Binder", "Rendezvous", "Simulator", "run_together"]
