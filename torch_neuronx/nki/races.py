"""Two cores of one launch touch the same shared HBM: who is first?

Kernels that know nothing of cores do the same on both: the same instruction that writes the same values twice is no race.

Only ``core_barrier``, ``sendrecv`` and collectives order the cores. Between two of them, a byte that one core writes must not be touched by
the other.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence

from torch_neuronx.nki.errors import NkiValidationError, NkiWarning
from torch_neuronx.nki.instruction import Instruction, Loop, Node, flatten
from torch_neuronx.nki.memory import AccessPattern, Buffer, MemoryRegion

Touch = tuple[Instruction, AccessPattern, bool]


def is_synchronising(instruction: Instruction) -> bool:
    return instruction.opcode in ("core_barrier", "sendrecv") or bool(instruction.attrs.get("collective"))


def check_cores(programs: Sequence[Sequence[Node]]) -> None:
    """Refuses a launch in which a core reads or writes what another one writes, without a barrier between them.

    Accesses at dynamic addresses are not compared: where they go is unknown.

    Raises:
        NkiValidationError: with the lines of both.
    """
    phases = [_phases(nodes) for nodes in programs]
    if len({len(p) for p in phases}) > 1:
        counts = ", ".join(f"{len(p) - 1} on core {core}" for core, p in enumerate(phases))
        raise NkiValidationError(
            f"the cores of the launch synchronise a different number of times ({counts}): one of them would wait for ever"
        )
    for phase in zip(*phases, strict=True):
        for core, mine in enumerate(phase):
            for theirs in phase[core + 1 :]:
                for buffer in mine.keys() & theirs.keys():
                    _compare(buffer, mine[buffer], theirs[buffer])


def _phases(nodes: Sequence[Node]) -> list[dict[Buffer, list[Touch]]]:
    phases: list[dict[Buffer, list[Touch]]] = [defaultdict(list)]
    for node in nodes:
        for instruction in flatten(node.body) if isinstance(node, Loop) else (node,):
            if is_synchronising(instruction):
                phases.append(defaultdict(list))
                continue
            for accesses, writes in ((instruction.reads, False), (instruction.writes, True)):
                for access in accesses:
                    if access.region is MemoryRegion.shared_hbm and not access.is_dynamic:
                        phases[-1][access.buffer].append((instruction, access, writes))
    return phases


def _compare(buffer: Buffer, mine: list[Touch], theirs: list[Touch]) -> None:
    if not any(w for *_, w in mine) and not any(w for *_, w in theirs):
        return
    for first in mine:
        for second in theirs:
            if (first[2] or second[2]) and first[1].overlaps(second[1]):
                _conflict(mine, theirs, first, second)


def _conflict(mine: list[Touch], theirs: list[Touch], first: Touch, second: Touch) -> None:
    """Reading what only the other core wrote is refused. Writing the same place is warned of: both may write the same values."""
    (a, _, a_writes), (b, other, b_writes) = first, second
    verb, earlier = ("writes" if writes else "reads" for writes in (b_writes, a_writes))
    text = (
        f"{b.line}: race between cores: core {b.core} {verb} {other}, which core {a.core} {earlier} at {a.line} "
        "with no nisa.core_barrier between them"
    )
    if a_writes and b_writes:
        if (a.index, a.line) != (b.index, b.line):
            warnings.warn(text, NkiWarning, stacklevel=2)
        return
    reader, own = (first, mine) if b_writes else (second, theirs)
    if not any(writes and access.overlaps(reader[1]) and i.index < reader[0].index for i, access, writes in own):
        raise NkiValidationError(text)
