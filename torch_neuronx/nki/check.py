"""What every instruction is held to, while a kernel is traced; `limits.py` has the rules of single rows.

Three kinds of rule: where an operand may lie (``_pattern``), what must have been written before it is read (``WrittenMask``), and which
bytes tensors at explicit addresses share (``_Clobbers``). Capacity and the cores' order are looked at when the trace has ended
(`liveness.py`, `races.py`).
"""

from __future__ import annotations

import math
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from torch_neuronx.nki import holes
from torch_neuronx.nki.errors import NkiValidationError, NkiWarning
from torch_neuronx.nki.instruction import Engine, Instruction
from torch_neuronx.nki.memory import AccessPattern, Buffer, MemoryRegion
from torch_neuronx.nki.target import PARTITIONS, PSUM_BANK_BYTES, PSUM_BYTES
from torch_neuronx.nki.written import WrittenMask

if TYPE_CHECKING:
    from torch_neuronx.nki.opcode import Opcode
    from torch_neuronx.nki.trace import Tracer

MAX_FREE = {MemoryRegion.sbuf: 65536, MemoryRegion.psum: 4096}  # elements of one operand in a partition
MAX_FREE_DIMS = 4
_BLOCK = 2048  # bytes of a partition that share one list of buffers in _Clobbers


def mode() -> str:
    """``TORCH_NEURONX_NKI_CHECKS``: error (default), warn or off.

    Raises:
        ValueError: another value.
    """
    value = os.environ.get("TORCH_NEURONX_NKI_CHECKS", "error")
    if value not in ("error", "warn", "off"):
        raise ValueError(f"TORCH_NEURONX_NKI_CHECKS is {value!r}; it may be error, warn or off")
    return value


class Checker:
    """The checks of one trace."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.mode = mode()
        self.written: dict[Buffer, WrittenMask] = {}
        self.accumulated: dict[Buffer, WrittenMask] = {}  # by matmul, in PSUM
        self.clobbers = _Clobbers()

    def report(self, text: str, line: object, *, only_warn: bool = False) -> None:
        """Raises, or warns, as the mode says."""
        if self.mode == "off":
            return
        if self.mode == "warn" or only_warn:
            warnings.warn(f"{line}: {text}", NkiWarning, stacklevel=2)
            return
        raise NkiValidationError(f"{line}: {text}")

    # Events of the trace.

    def allocated(self, buffer: Buffer) -> None:
        from torch_neuronx.nki.trace import source_line

        if buffer.address is not None:
            self._address(buffer, source_line())
        if buffer.region.on_chip and not self.tracer.beta1:  # whose compiler reuses the memory of block dimensions
            limit = PSUM_BYTES if buffer.region is MemoryRegion.psum else self.tracer.target.sbuf_bytes
            if buffer.free_bytes > limit:
                self.report(
                    f"{buffer.name} takes {buffer.free_bytes} bytes per partition; "
                    f"{buffer.region} of {self.tracer.target.name} has {limit}",
                    source_line(),
                )

    def outside_the_loop(self, buffer: Buffer) -> bool:
        """True inside a device loop, for a buffer that was made before it: what was written to it depends on the turn."""
        return buffer.nesting != self.tracer.nesting

    def instruction(self, i: Instruction, row: Opcode) -> None:
        if self.mode == "off":
            if i.opcode in ("nc_matmul", "nc_matmul_mx"):
                self._matmul_history(i)
            return
        for name, value in i.operands.items():
            for access in value if isinstance(value, list) else [value]:
                if isinstance(access, AccessPattern):
                    self._pattern(i, name, access)
        self._loop_scope(i)
        if self._move_with_holes(i):
            return
        for access in i.reads:
            self._read(i, access)
        if i.opcode in ("nc_matmul", "nc_matmul_mx"):
            self._matmul_history(i)
        for access in i.writes:
            self.mask(access.buffer).write(access)
            if access.buffer.address is not None:
                self.clobbers.write(access)

    # Where an operand may lie.

    def _pattern(self, i: Instruction, name: str, access: AccessPattern) -> None:
        buffer = access.buffer
        is_dma = i.engine is Engine.dma
        if buffer.region.on_chip:
            if access.partitions > PARTITIONS or buffer.partitions > PARTITIONS:
                count = max(access.partitions, buffer.partitions)
                self.report(f"{i.opcode} {name} partition dimension {count} exceeds maximum {PARTITIONS}", i.line)
            self._engine_reaches(i, name, access)
            if not is_dma:
                self._start_partition(i, name, access)
                if len(access.free_pattern) > MAX_FREE_DIMS and not self.tracer.beta1:  # whose compiler splits instructions
                    self.report(
                        f"{i.opcode} {name} walks {len(access.free_pattern)} free dimensions; instructions have at most {MAX_FREE_DIMS}",
                        i.line,
                    )
                distinct = math.prod(count for stride, count in access.pattern[1:] if stride)  # repeats (stride 0) take no room
                if distinct > MAX_FREE[buffer.region]:
                    self.report(
                        f"{i.opcode} {name} free size {distinct} exceeds {MAX_FREE[buffer.region]} elements in {buffer.region}",
                        i.line,
                    )
        self._bounds(i, name, access)

    def _engine_reaches(self, i: Instruction, name: str, access: AccessPattern) -> None:
        if access.region is MemoryRegion.psum and i.engine in (Engine.gpsimd, Engine.dma):
            what = "GpSimd engine" if i.engine is Engine.gpsimd else "DMA engines"
            self.report(f"{i.opcode} {name} is in PSUM, which the {what} cannot access. Copy it to SBUF first (nisa.tensor_copy)", i.line)

    def _start_partition(self, i: Instruction, name: str, access: AccessPattern) -> None:
        if self.tracer.beta1:
            return  # beta-1 compilers place tiles themselves
        count, start = access.partitions, access.start_partition
        step = 128 if count > 64 else 64 if count > 32 else 32
        if start % step:
            allowed = {128: "0", 64: "0 or 64", 32: "0, 32, 64 or 96"}[step]
            self.report(f"{i.opcode} {name} starts on partition {start}; {count} partitions must start on {allowed}", i.line)

    def _bounds(self, i: Instruction, name: str, access: AccessPattern) -> None:
        buffer = access.buffer
        if access.dynamic is not None:
            return  # looked at when the value is known
        first, last = access.span()
        total = buffer.size * buffer.dtype.bytes // access.itemsize
        if first < 0 or last >= total:
            self.report(
                f"Out-of-bound access: {i.opcode} {name} {access} touches element {last if last >= total else first} of {total}", i.line
            )
        if buffer.region.on_chip:
            start, end = access.free_span()
            free = access.buffer_free
            if (start < 0 or end >= free) and not _walks_partitions_only(access):
                self.report(f"Out-of-bound access: {i.opcode} {name} {access} leaves the partition of {free} elements", i.line)

    def _address(self, buffer: Buffer, line: object) -> None:
        assert buffer.address is not None
        partition, byte = buffer.address
        limit = PSUM_BYTES if buffer.region is MemoryRegion.psum else self.tracer.target.sbuf_bytes
        if partition < 0 or partition + buffer.partitions > PARTITIONS:
            self.report(f"{buffer.name}: partitions {partition} to {partition + buffer.partitions - 1} exceed maximum {PARTITIONS}", line)
        if byte < 0 or byte + buffer.free_bytes > limit:
            self.report(
                f"{buffer.name}: bytes {byte} to {byte + buffer.free_bytes - 1} of a partition exceed the {limit} bytes of {buffer.region} "
                f"on {self.tracer.target.name}",
                line,
            )
        if byte % buffer.dtype.bytes:
            self.report(f"{buffer.name}: byte address {byte} is not a multiple of the size of {buffer.dtype}", line)
        self.clobbers.add(buffer)

    def _loop_scope(self, i: Instruction) -> None:
        for access in (*i.reads, *i.writes):
            made_in = access.buffer.nesting
            if made_in != i.nesting[: len(made_in)]:
                self.report(f"{i.opcode}: {access.buffer.name} was made in the body of a dynamic loop and cannot be used outside", i.line)

    # What has been written.

    def mask(self, buffer: Buffer) -> WrittenMask:
        if buffer not in self.written:
            self.written[buffer] = WrittenMask(buffer, full=buffer.role in ("input", "constant"))
        return self.written[buffer]

    def _move_with_holes(self, i: Instruction) -> bool:
        """An instruction on tiles that were written in part: see holes.py."""
        if not holes.may_move(i) or self.outside_the_loop(i.writes[0].buffer):
            return False
        dst = i.writes[0]
        sources = [(self.mask(access.buffer), access) for access in i.reads]
        if all(mask.covers(access) for mask, access in sources) or sources[0][0].misses(sources[0][1]):
            return False
        known = holes.known_in_result(i, [mask.known(access).reshape(access.partitions, -1) for mask, access in sources])
        if known is None or not known.any() or not self.mask(dst.buffer).write_where(dst, known):
            return False
        for access in i.reads:
            access.buffer.needs_fill = True
        if dst.buffer.address is not None:
            self.clobbers.write(dst)
        return True

    def _read(self, i: Instruction, access: AccessPattern) -> None:
        buffer = access.buffer
        if not self.mask(buffer).covers(access):
            buffer.needs_fill = True
            if buffer.region is MemoryRegion.shared_hbm and self.tracer.cores > 1:
                return  # the other core may have written it
            how = "was never written" if self.mask(buffer).is_empty else "was written only in part"
            self.report(f"{i.opcode} reads uninitialised memory: {access} {how}", i.line, only_warn=self.tracer.beta1)
        if buffer.address is not None:
            other = self.clobbers.conflict(access)
            if other is not None:
                self.report(
                    f"{i.opcode} reads {access}, whose bytes were overwritten through {other}: the two have overlapping addresses", i.line
                )

    def _matmul_history(self, i: Instruction) -> None:
        """Resolves ``accumulate``: True, False, "history" (a mask in ``attrs``) or "dynamic" (the history depends on a loop's turn)."""
        dst = i.writes[0]
        buffer = dst.buffer
        history = self.accumulated.setdefault(buffer, WrittenMask(buffer))
        asked = i.attrs.get("accumulate")
        if asked is None:
            if self.outside_the_loop(buffer):
                i.attrs["accumulate"] = "dynamic"
            elif history.covers(dst):
                i.attrs["accumulate"] = True
            elif history.misses(dst):
                i.attrs["accumulate"] = False
            else:
                i.attrs["accumulate"] = "history"
                i.attrs["history"] = torch.from_numpy(history.known(dst).copy())
        elif asked and not history.covers(dst) and not self.outside_the_loop(buffer):
            known = self.mask(buffer).covers(dst)
            why = "was written by another instruction than a matmul" if known else "was never written"
            self.report(f"{i.opcode} accumulates onto {dst}, which {why}: the result is undefined", i.line, only_warn=known)
        if i.attrs["accumulate"] is not False:
            i.reads = (*i.reads, dst)
        history.write(dst)


Rectangle = tuple[int, int, int, int]  # partitions and bytes, half open


class _Clobbers:
    """Tensors at explicit addresses: which of their bytes were last written through another tensor."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[MemoryRegion, int], list[Buffer]] = defaultdict(list)
        self._lost: dict[Buffer, list[tuple[Rectangle, Buffer]]] = defaultdict(list)

    def _rectangle(self, buffer: Buffer) -> Rectangle:
        assert buffer.address is not None
        partition, byte = buffer.address
        return partition, partition + buffer.partitions, byte, byte + buffer.free_bytes

    def _keys(self, buffer: Buffer, start: int, stop: int) -> Sequence[tuple[MemoryRegion, int]]:
        return [(buffer.region, block) for block in range(start // _BLOCK, (stop - 1) // _BLOCK + 1)]

    def add(self, buffer: Buffer) -> None:
        mine = self._rectangle(buffer)
        for key in self._keys(buffer, mine[2], mine[3]):
            for other in self._blocks[key]:
                if _intersect(mine, self._rectangle(other)):
                    buffer.is_aliased = other.is_aliased = True
            self._blocks[key].append(buffer)

    def _touched(self, access: AccessPattern) -> Rectangle:
        start, stop = access.byte_range()
        return access.start_partition, access.start_partition + access.partitions, start, stop

    def write(self, access: AccessPattern) -> None:
        if not access.buffer.is_aliased:
            return
        mine = self._touched(access)
        if access.buffer in self._lost:
            self._lost[access.buffer] = [(rest, by) for r, by in self._lost[access.buffer] for rest in _without(r, mine)]
        for key in self._keys(access.buffer, mine[2], mine[3]):
            kept = []
            for other in self._blocks[key]:
                theirs = self._rectangle(other)
                overlap = None if other is access.buffer else _intersect(mine, theirs)
                if overlap is not None and not any(_covers(r, overlap) for r, _ in self._lost[other]):
                    self._lost[other].append((overlap, access.buffer))
                if other is access.buffer or not _covers(mine, theirs):
                    kept.append(other)
            if len(kept) < len(self._blocks[key]):
                self._blocks[key] = kept
        if access.buffer not in self._blocks[self._keys(access.buffer, mine[2], mine[3])[0]]:  # written again after it was lost
            for key in self._keys(access.buffer, *self._rectangle(access.buffer)[2:]):
                if access.buffer not in self._blocks[key]:
                    self._blocks[key].append(access.buffer)

    def conflict(self, access: AccessPattern) -> Buffer | None:
        """A tensor through which some of the bytes were last written."""
        lost = self._lost.get(access.buffer)
        if not lost or access.dynamic is not None:
            return None
        mine = self._touched(access)
        return next((by for rectangle, by in lost if _intersect(mine, rectangle)), None)


def _intersect(a: Rectangle, b: Rectangle) -> Rectangle | None:
    r = max(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), min(a[3], b[3])
    return r if r[0] < r[1] and r[2] < r[3] else None


def _covers(a: Rectangle, b: Rectangle) -> bool:
    return a[0] <= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] >= b[3]


def _without(a: Rectangle, b: Rectangle) -> list[Rectangle]:
    """What is left of ``a`` when ``b`` is taken away."""
    middle = _intersect(a, b)
    if middle is None:
        return [a]
    above, below = (a[0], middle[0], a[2], a[3]), (middle[1], a[1], a[2], a[3])
    left, right = (middle[0], middle[1], a[2], middle[2]), (middle[0], middle[1], middle[3], a[3])
    return [r for r in (above, below, left, right) if r[0] < r[1] and r[2] < r[3]]


def _walks_partitions_only(access: AccessPattern) -> bool:
    return all(count == 1 or (stride and stride % access.buffer_free == 0) for stride, count in access.pattern[1:])


def crosses_bank(access: AccessPattern) -> bool:
    """True for a PSUM operand that lies in more than one 2 KiB bank; a tensor without an address starts on a bank."""
    start, stop = access.byte_range()
    return start // PSUM_BANK_BYTES != (stop - 1) // PSUM_BANK_BYTES


CheckFunction = Callable[[Instruction], None]
