"""From when to when a buffer is needed; what fits on chip; which buffers may share storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.instruction import Instruction, Loop, Node, SourceLine
from torch_neuronx.nki.memory import Buffer, MemoryRegion
from torch_neuronx.nki.target import PARTITIONS, PSUM_BYTES, Target


@dataclass
class Lifetime:
    """Positions in the flattened program, both inclusive."""

    first: int
    last: int
    line: SourceLine


def lifetimes(nodes: Sequence[Node]) -> dict[Buffer, Lifetime]:
    """The first and last use of each buffer; one that was made outside a loop and is used in it lives as long as the loop."""
    found: dict[Buffer, Lifetime] = {}

    def walk(nodes: Sequence[Node], position: int) -> int:
        for node in nodes:
            if isinstance(node, Loop):
                begin = position
                position = walk(node.body, position)
                for buffer, life in found.items():
                    if life.last >= begin and node.index not in buffer.nesting:
                        life.first, life.last = min(life.first, begin), position - 1
                continue
            for buffer in {access.buffer for access in (*node.reads, *node.writes)}:
                if buffer in found:
                    found[buffer].last = position
                else:
                    found[buffer] = Lifetime(position, position, node.line)
            position += 1
        return position

    walk(nodes, 0)
    return found


def check_capacity(nodes: Sequence[Node], target: Target) -> None:
    """Refuses a kernel whose tensors, live at one time, cannot fit into SBUF or PSUM wherever they are put.

    Raises:
        NkiValidationError: with the line at which the memory ran out, and what was live there.
    """
    lives = lifetimes(nodes)
    for region, limit in ((MemoryRegion.sbuf, target.sbuf_usable_bytes), (MemoryRegion.psum, PSUM_BYTES)):
        events: list[tuple[int, int, int, Buffer]] = []
        for buffer, life in lives.items():
            if buffer.region is region and buffer.address is None:
                need = _bytes(buffer)
                events += [(life.first, 1, need, buffer), (life.last + 1, 0, -need, buffer)]
        live: set[Buffer] = set()
        total = 0
        for position, opens, need, buffer in sorted(events, key=lambda e: (e[0], e[1])):
            total += need
            (live.add if opens else live.discard)(buffer)
            if total > limit * PARTITIONS:
                largest = sorted(live, key=_bytes, reverse=True)[:4]
                raise NkiValidationError(
                    f"{_line_at(nodes, position)}: {region.value.upper()} is full: {total // PARTITIONS} bytes per partition are live, "
                    f"{target.name} has {limit}. Largest: {', '.join(f'{b} ({b.free_bytes} B)' for b in largest)}. Use smaller tiles, or "
                    "make a tensor where it is used instead of before a loop"
                )


def _bytes(buffer: Buffer) -> int:
    """What a buffer takes of the whole memory: tiles of at most 32 or 64 partitions can be put side by side."""
    partitions = next(p for p in (32, 64, PARTITIONS) if buffer.partitions <= p)
    return partitions * buffer.free_bytes


def _line_at(nodes: Sequence[Node], position: int) -> SourceLine:
    count = 0

    def find(nodes: Sequence[Node]) -> Instruction | None:
        nonlocal count
        for node in nodes:
            if isinstance(node, Loop):
                hit = find(node.body)
                if hit is not None:
                    return hit
            else:
                if count == position:
                    return node
                count += 1
        return None

    hit = find(nodes)
    return hit.line if hit is not None else SourceLine("?", 0, "?")
