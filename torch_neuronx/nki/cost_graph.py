"""Which instruction waits for which: data, registers, explicit edges, and memory that is used again.

Program order is the meaning of a kernel, but engines run ahead of it. What they wait for are the edges made here. A tensor without an
address gets its place from the compiler, so a new one may have to wait until an old one is dead: PSUM tensors take the bank that has been
free longest, SBUF tensors the bytes that have. This is what limits how far loads run ahead of the arithmetic.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from torch_neuronx.nki.instruction import Engine, Instruction, Loop, Node, flatten
from torch_neuronx.nki.memory import AccessPattern, Buffer, MemoryRegion
from torch_neuronx.nki.target import PSUM_BANK_BYTES, PSUM_BANKS, Target


class Edge(IntEnum):
    """What a successor waits for."""

    order = 0  # the predecessor's engine is done with it
    data = 1  # what it wrote can be read


@dataclass(eq=False)
class Task:
    """A node of the graph: an instruction, a device loop, or (neither) the release of memory, which takes no time."""

    index: int
    instruction: Instruction | None = None
    loop: Loop | None = None
    successors: list[tuple[Task, Edge]] = field(default_factory=list)
    waits: int = 0
    psum: tuple[Buffer, ...] = ()  # tensors in PSUM without an address that it touches

    def after(self, earlier: Task, edge: Edge) -> None:
        earlier.successors.append((self, edge))
        self.waits += 1


def build(nodes: Sequence[Node], target: Target) -> list[Task]:
    """The tasks of one core in program order, with their edges. Releases of memory come right before the task that first needs it."""
    return _Builder(nodes, target).tasks


class _Builder:
    def __init__(self, nodes: Sequence[Node], target: Target) -> None:
        self.tasks: list[Task] = []
        self.by_instruction: dict[int, Task] = {}
        self.memory: dict[object, _History] = {}
        # Nobody waits for a memory that is only read.
        self.written = {access.buffer.storage_key for i in flatten(nodes) for access in i.writes}
        self.scalars: dict[object, tuple[Task | None, list[Task]]] = {}  # registers and accumulators: last writer, readers since
        self.place = _Placement(nodes, target, self)
        for position, node in enumerate(nodes):
            instructions = list(flatten([node]))
            releases = self.place.before(position, instructions)
            task = Task(len(self.tasks), node if isinstance(node, Instruction) else None, node if isinstance(node, Loop) else None)
            self.tasks.append(task)
            if task.instruction is not None:
                i = task.instruction
                task.psum = tuple({a.buffer for a in (*i.reads, *i.writes) if _placed(a.buffer, MemoryRegion.psum)})
            self._connect(task, instructions, releases)
            self.place.used(position, instructions, task)

    def new_release(self) -> Task:
        task = Task(len(self.tasks))
        self.tasks.append(task)
        return task

    def _connect(self, task: Task, instructions: Iterable[Instruction], releases: Iterable[Task]) -> None:
        waits: dict[Task, Edge] = {}

        def wait(earlier: Task | None, edge: Edge) -> None:
            if earlier is not None and earlier is not task:
                waits[earlier] = max(edge, waits.get(earlier, Edge.order))

        for release in releases:
            wait(release, Edge.order)
        for i in instructions:
            for index in i.after:
                wait(self.by_instruction.get(index), Edge.data)
            for register in (*i.register_reads, *i.register_writes):
                wait(self.scalars.get(register, (None, []))[0], Edge.data)
            for key in _written_scalars(i):
                writer, readers = self.scalars.get(key, (None, []))
                wait(writer, Edge.order)
                for reader in readers:
                    wait(reader, Edge.order)
            for access in i.reads:
                if access.buffer.storage_key in self.written:
                    for earlier in self._history(access).writers(access):
                        wait(earlier, _edge(earlier, i))
            for access in i.writes:
                history = self._history(access)
                for earlier in history.writers(access):
                    wait(earlier, Edge.order)
                for earlier in history.readers(access):
                    wait(earlier, Edge.order)
        for i in instructions:
            self.by_instruction[i.index] = task
            for access in i.reads:
                if access.buffer.storage_key in self.written:
                    self._history(access).read(access, task)
            for access in i.writes:
                self._history(access).write(access, task)
            for register in i.register_reads:
                self.scalars.setdefault(register, (None, []))[1].append(task)
            for key in _written_scalars(i):
                self.scalars[key] = (task, [])
        for earlier, edge in waits.items():
            task.after(earlier, edge)

    def _history(self, access: AccessPattern) -> _History:
        key = access.buffer.storage_key
        history = self.memory.get(key)
        if history is None:
            history = self.memory[key] = _History()
        return history


def _written_scalars(i: Instruction) -> list[object]:
    """Registers, and the accumulator of its engine."""
    return [*i.register_writes, *([i.accumulator] if i.accumulator else [])]


def _edge(earlier: Task, reader: Instruction) -> Edge:
    """Matmuls that accumulate onto each other follow without a gap: the adder sits at the memory."""
    both_tensor = reader.engine is Engine.tensor and earlier.instruction is not None and earlier.instruction.engine is Engine.tensor
    return Edge.order if both_tensor else Edge.data


class _History:
    """Accesses of one memory that later ones may have to wait for. Bounding boxes first (by NumPy), the exact test after."""

    def __init__(self) -> None:
        self._writes = _Accesses()
        self._reads = _Accesses()

    def writers(self, access: AccessPattern) -> Iterable[Task]:
        return self._writes.overlapping(access)

    def readers(self, access: AccessPattern) -> Iterable[Task]:
        return self._reads.overlapping(access)

    def read(self, access: AccessPattern, task: Task) -> None:
        self._reads.add(access, task)

    def write(self, access: AccessPattern, task: Task) -> None:
        if access.covers_buffer and not access.buffer.is_aliased and access.buffer.address is None:
            self._writes, self._reads = _Accesses(), _Accesses()
        else:
            self._writes.drop_same(access)
            self._reads.drop_same(access)
        self._writes.add(access, task)


class _Accesses:
    """Few are compared one by one, many by NumPy over their bounding boxes."""

    _FEW = 16

    def __init__(self) -> None:
        self._entries: dict[int, tuple[AccessPattern, Task]] = {}
        self._by_place: dict[object, list[int]] = {}
        self._boxes: np.ndarray | None = None
        self._used = 0

    def add(self, access: AccessPattern, task: Task) -> None:
        if self._used > 64 and len(self._entries) < self._used // 2:
            self._compact()
        if self._boxes is not None:
            if self._used == len(self._boxes):
                self._boxes = np.concatenate([self._boxes, np.empty_like(self._boxes)])
            self._boxes[self._used] = _box(access)
        self._entries[self._used] = (access, task)
        self._by_place.setdefault(_place(access), []).append(self._used)
        self._used += 1

    def drop_same(self, access: AccessPattern) -> None:
        """Forgets accesses of exactly the same elements: whoever waits for the new write waits for them too."""
        for entry in self._by_place.pop(_place(access), []):
            del self._entries[entry]
            if self._boxes is not None:
                self._boxes[entry] = (0, -1, 0, -1)

    def overlapping(self, access: AccessPattern) -> Iterable[Task]:
        entries = self._entries
        found: Iterable[tuple[AccessPattern, Task]] = entries.values()
        if len(entries) > self._FEW:
            p0, p1, b0, b1 = _box(access)
            boxes = self._all_boxes()
            hits = (boxes[:, 0] <= p1) & (boxes[:, 1] >= p0) & (boxes[:, 2] <= b1) & (boxes[:, 3] >= b0)
            found = [entries[entry] for entry in np.flatnonzero(hits).tolist()]
        # The commonest case by far is the very same elements; the exact test is dear.
        same = (access.buffer, access.offset, access.pattern)
        return [task for other, task in found if (other.buffer, other.offset, other.pattern) == same or access.overlaps(other)]

    def _all_boxes(self) -> np.ndarray:
        if self._boxes is None:
            self._boxes = np.full((2 * self._used, 4), (0, -1, 0, -1), np.int64)
            for entry, (access, _) in self._entries.items():
                self._boxes[entry] = _box(access)
        return self._boxes[: self._used]

    def _compact(self) -> None:
        entries, self._entries, self._by_place, self._boxes, self._used = self._entries, {}, {}, None, 0
        for access, task in entries.values():
            self.add(access, task)


def _place(access: AccessPattern) -> object:
    return (id(access.buffer), access.offset, access.pattern, access.dtype.bytes, id(access.dynamic) if access.dynamic else 0)


def _box(access: AccessPattern) -> tuple[int, int, int, int]:
    """First and last partition and byte. In HBM: first and last row, and byte within the row, where the access stays within rows."""
    start, stop = access.byte_range()
    if access.region.on_chip:
        first = access.start_partition
        return first, first + access.partitions - 1, start, stop - 1
    row = access.buffer.shape[-1] * access.buffer.dtype.bytes
    inner = [(s, c) for s, c in access.pattern if c > 1 and abs(s) * access.itemsize < row]
    outer = [(s, c) for s, c in access.pattern if c > 1 and abs(s) * access.itemsize >= row]
    left = (access.offset * access.itemsize) % row
    right = left + (sum(s * (c - 1) for s, c in inner) + 1) * access.itemsize - 1
    if access.dynamic is not None or right >= row or any(s < 0 for s, _ in inner) or any((s * access.itemsize) % row for s, _ in outer):
        return start // row, (stop - 1) // row, 0, row - 1
    return start // row, (stop - 1) // row, left, right


def banks(buffer: Buffer) -> int:
    """PSUM banks that a tensor fills."""
    return math.ceil(buffer.free_bytes / PSUM_BANK_BYTES)


def _placed(buffer: Buffer, region: MemoryRegion) -> bool:
    """The compiler chooses its place."""
    return buffer.region is region and buffer.address is None


def free_banks(tasks: Sequence[Task]) -> int:
    """PSUM banks that no tensor with an address occupies."""
    taken: set[int] = set()
    for task in tasks:
        for i in flatten([node for node in (task.instruction, task.loop) if node is not None]):
            for buffer in {a.buffer for a in (*i.reads, *i.writes) if a.region is MemoryRegion.psum}:
                if buffer.address is not None:
                    taken.update(
                        range(buffer.address[1] // PSUM_BANK_BYTES, math.ceil((buffer.address[1] + buffer.free_bytes) / PSUM_BANK_BYTES))
                    )
    return PSUM_BANKS - len(taken)


class _Placement:
    """Where SBUF tensors without an address live, in program order; gives the releases that their first users wait for."""

    def __init__(self, nodes: Sequence[Node], target: Target, builder: _Builder) -> None:
        self._builder = builder
        last: dict[Buffer, int] = {}
        addressed = 0
        for position, node in enumerate(nodes):
            for i in flatten([node]):
                for access in (*i.reads, *i.writes):
                    if access.region is MemoryRegion.sbuf:
                        last[access.buffer] = position
        for buffer in last:
            if buffer.address is not None:
                addressed = max(addressed, buffer.address[1] + buffer.free_bytes)
        self._pool = _Pool(max(target.sbuf_usable_bytes - addressed, 0))
        self._release: dict[Buffer, list[Task]] = {}
        self._users: dict[Buffer, list[Task]] = {}
        self._dying: dict[int, list[Buffer]] = {}
        for buffer, position in last.items():
            self._dying.setdefault(position, []).append(buffer)

    def before(self, position: int, instructions: list[Instruction]) -> list[Task]:
        releases: dict[Task, None] = {}
        for i in instructions:
            for access in (*i.reads, *i.writes):
                buffer = access.buffer
                if not _placed(buffer, MemoryRegion.sbuf):
                    continue
                if buffer not in self._release:
                    self._release[buffer] = self._allocate(buffer)
                releases.update(dict.fromkeys(self._release[buffer]))
        return list(releases)

    def _allocate(self, buffer: Buffer) -> list[Task]:
        self._users[buffer] = []
        former = self._pool.take(buffer.free_bytes)
        if not former:
            return []
        release = self._builder.new_release()
        for user in former:
            release.after(user, Edge.order)
        return [release]

    def used(self, position: int, instructions: list[Instruction], task: Task) -> None:
        for buffer in {access.buffer for i in instructions for access in (*i.reads, *i.writes)}:
            if buffer in self._users:
                self._users[buffer].append(task)
        for buffer in self._dying.get(position, []):
            users = self._users.pop(buffer, None)
            if users is not None:
                self._pool.give(buffer.free_bytes, users)


class _Pool:
    """Bytes of a partition. What was given back first is taken first."""

    def __init__(self, capacity: int) -> None:
        self._fresh = capacity
        self._dead: deque[tuple[int, list[Task]]] = deque()

    def take(self, amount: int) -> list[Task]:
        """The tasks after which ``amount`` bytes are free. An over-full memory (checks are off) makes nobody wait."""
        fresh = min(amount, self._fresh)
        self._fresh -= fresh
        amount -= fresh
        former: dict[Task, None] = {}
        while amount > 0 and self._dead:
            size, users = self._dead.popleft()
            former.update(dict.fromkeys(users))
            if size > amount:
                self._dead.appendleft((size - amount, users))
            amount -= size
        return list(former)

    def give(self, amount: int, users: list[Task]) -> None:
        self._dead.append((amount, users))
