"""``nki.collectives``: exchange between ranks; a rank is one logical core.

One process emulates all ranks: ``nki.simulate_ranks(kernel)([arguments of rank 0, arguments of rank 1, ...])``. A collective is where
all ranks meet (:class:`Rendezvous`); what it moves, it moves when the last one has arrived. The physical cores of a rank take part
together: for shared HBM the first one acts for both, on-chip tensors are exchanged core by core.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_neuronx.nki import numerics, trace
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.instruction import Instruction, Register
from torch_neuronx.nki.isa.elementwise import combine
from torch_neuronx.nki.language import NKIObject
from torch_neuronx.nki.memory import AccessPattern, MemoryRegion
from torch_neuronx.nki.opcode import Call, Opcode, opcode
from torch_neuronx.nki.simulator import Binder, Rendezvous
from torch_neuronx.nki.tensor import NkiTensor

REDUCTIONS = ("add", "minimum", "maximum")


@dataclass
class ReplicaGroup(NKIObject):
    """Lists of ranks that exchange among themselves; a rank is in at most one list.

    Raises:
        ValueError: a rank is in two lists, or twice in one.
    """

    rank_lists: Any

    def __post_init__(self) -> None:
        ranks = [rank for ranks in self.rank_lists for rank in ranks]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"the rank lists of a replica group must not overlap, got {self.rank_lists}")


# Rules.


def _tensors(call: Call) -> None:
    srcs, dsts = call["srcs"], call["dsts"]
    if not isinstance(srcs, list) or not isinstance(dsts, list) or len(srcs) != len(dsts) or not srcs:
        call.fail("takes lists of as many srcs as dsts")
    on_chip = {a.region.on_chip for a in [*srcs, *dsts]}
    if len(on_chip) > 1:
        call.fail("takes tensors that are all in HBM or all in SBUF")
    if any(a.region is MemoryRegion.psum for a in [*srcs, *dsts]):
        call.fail("cannot reach PSUM. Copy to SBUF first (nisa.tensor_copy)")
    if on_chip == {True} and len(srcs) > 1:
        call.fail("takes several tensors in HBM only")
    for src, dst in zip(srcs, dsts, strict=True):
        if src.dtype is not dst.dtype:
            call.fail(f"needs equal dtypes, got {src.dtype} and {dst.dtype}", ValueError)
    priority = call.attrs.get("priority")
    if priority is not None and (call.target.generation < 4 or priority not in (0, 1, 2, 3)):
        call.fail(f"priority is 0 to 3, on trn3; got {priority} on {call.target.name}")
    call.attrs["collective"] = True


def _hbm_only(call: Call) -> None:
    if any(a.region.on_chip for a in call["srcs"]):
        call.fail("takes tensors in HBM")


def _reduction(call: Call) -> None:
    if call.attrs["op"] not in REDUCTIONS:
        call.fail(f"op={call.attrs['op']} not supported; it may be {', '.join(REDUCTIONS)}")


def _dim(*allowed_in_sbuf: int) -> Callable[[Call], None]:
    def check(call: Call) -> None:
        dim = call["collective_dim"]
        allowed = allowed_in_sbuf if call["srcs"][0].region.on_chip else (0,)
        if dim not in allowed:
            call.fail(f"collective_dim must be {' or '.join(map(str, allowed))} here, got {dim}")

    return check


def _ratio(of_dst: Callable[[int], int], of_src: Callable[[int], int]) -> Callable[[Call], None]:
    """Sizes of sources and destinations for ``n`` ranks in a list."""

    def check(call: Call) -> None:
        for ranks in call["replica_group"].rank_lists:
            n = len(ranks)
            for src, dst in zip(call["srcs"], call["dsts"], strict=True):
                if dst.size * of_src(n) != src.size * of_dst(n):
                    call.fail(f"of {n} ranks: src {src.shape} does not fit dst {dst.shape}")

    return check


# The meeting.

Participants = list[Rendezvous]
Act = Callable[[Participants, Instruction], None]


def _meets(row: Opcode) -> Callable[[Act], Act]:
    """Decorator: the row is a meeting of all ranks, and the function moves the data among the ranks of one list."""

    def register(act: Act) -> Act:
        def bind_row(i: Instruction, bind: Binder) -> Any:
            return Rendezvous(i, bind, functools.partial(_exchange, act))

        row.run = bind_row
        return act

    return register


def _exchange(act: Act, waiting: Participants) -> None:
    for core in sorted({meeting.binder.core for meeting in waiting}):
        ranks = {m.binder.simulator.rank: m for m in waiting if m.binder.core == core}
        instruction = waiting[0].instruction
        tensors = [*instruction.reads, *instruction.writes]
        if core and all(a.region is MemoryRegion.shared_hbm or a.buffer.role in ("input", "output") for a in tensors):
            continue
        for group in _groups(instruction, len(ranks)):
            missing = [rank for rank in group if rank not in ranks]
            if missing:
                raise NkiValidationError(
                    f"{instruction.line}: {instruction.opcode} needs rank {missing[0]}; {len(ranks)} rank(s) are running. "
                    "Run all of them with nki.simulate_ranks(kernel)([arguments of each rank])"
                )
            act([ranks[rank] for rank in group], instruction)


def _groups(instruction: Instruction, count: int) -> Sequence[Sequence[int]]:
    group = instruction.attrs.get("replica_group")
    return group.rank_lists if group is not None else [list(range(count))]


def _operand(meeting: Rendezvous, name: str, k: int) -> AccessPattern:
    return meeting.instruction.operands[name][k]  # type: ignore[index]


def _raw(meeting: Rendezvous, name: str, k: int) -> torch.Tensor:
    return meeting.binder.raw(_operand(meeting, name, k))().clone()


def _values(meeting: Rendezvous, name: str, k: int) -> torch.Tensor:
    return meeting.binder.load(_operand(meeting, name, k))().clone()


def _put(meeting: Rendezvous, k: int, tensor: torch.Tensor) -> None:
    dst = _operand(meeting, "dsts", k)
    meeting.binder.raw_store(dst)(tensor.reshape(dst.shape))


def _put_values(meeting: Rendezvous, k: int, tensor: torch.Tensor) -> None:
    dst = _operand(meeting, "dsts", k)
    meeting.binder.store(dst)(tensor.reshape(dst.shape))


def _count(instruction: Instruction) -> int:
    return len(instruction.operands["dsts"])  # type: ignore[arg-type]


def _reduced(ranks: Participants, k: int, op: str) -> torch.Tensor:
    """In the order of the ranks, in float32, so that all get the same bits."""
    return functools.reduce(functools.partial(combine, op), [_values(m, "srcs", k) for m in ranks])


@opcode("dma", writes="dsts", reads="srcs", limits=[_tensors, _reduction, _ratio(lambda n: 1, lambda n: 1)])
def all_reduce(srcs: Any, dsts: Any, replica_group: ReplicaGroup, op: Any, priority: int | None = None, name: str | None = None) -> None:
    """Every rank receives ``op`` over all ranks."""


@_meets(all_reduce)
def _(ranks: Participants, i: Instruction) -> None:
    for k in range(_count(i)):
        total = _reduced(ranks, k, i.attrs["op"])
        for meeting in ranks:
            _put_values(meeting, k, total)


@opcode("dma", writes="dsts", reads="srcs", limits=[_tensors, _dim(0, 1), _ratio(lambda n: n, lambda n: 1)])
def all_gather(
    srcs: Any, dsts: Any, replica_group: ReplicaGroup, collective_dim: int, priority: int | None = None, name: str | None = None
) -> None:
    """Every rank receives the tensors of all ranks, joined along ``collective_dim``."""


@_meets(all_gather)
def _(ranks: Participants, i: Instruction) -> None:
    for k in range(_count(i)):
        joined = torch.cat([_raw(m, "srcs", k) for m in ranks], i.attrs["collective_dim"])
        for meeting in ranks:
            _put(meeting, k, joined)


@opcode("dma", writes="dsts", reads="srcs", limits=[_tensors, _reduction, _dim(0), _ratio(lambda n: 1, lambda n: n)])
def reduce_scatter(
    srcs: Any, dsts: Any, replica_group: ReplicaGroup, collective_dim: int, op: Any, priority: int | None = None, name: str | None = None
) -> None:
    """``op`` over all ranks, of which each rank keeps its part along dim 0."""


@_meets(reduce_scatter)
def _(ranks: Participants, i: Instruction) -> None:
    for k in range(_count(i)):
        parts = _reduced(ranks, k, i.attrs["op"]).chunk(len(ranks))
        for meeting, part in zip(ranks, parts, strict=True):
            _put_values(meeting, k, part)


@opcode("dma", writes="dsts", reads="srcs", limits=[_tensors, _hbm_only, _dim(0), _ratio(lambda n: 1, lambda n: 1)])
def all_to_all(
    srcs: Any, dsts: Any, replica_group: ReplicaGroup, collective_dim: int, priority: int | None = None, name: str | None = None
) -> None:
    """Each rank sends part ``r`` of its tensor, along dim 0, to rank ``r`` of the list."""


@_meets(all_to_all)
def _(ranks: Participants, i: Instruction) -> None:
    for k in range(_count(i)):
        parts = [_raw(m, "srcs", k).chunk(len(ranks)) for m in ranks]
        for position, meeting in enumerate(ranks):
            _put(meeting, k, torch.cat([part[position] for part in parts]))


def _one_pair(call: Call) -> None:
    if len(call["srcs"]) != 1:
        call.fail(f"takes exactly one tensor, got {len(call['srcs'])}")


@opcode("dma", writes="dsts", reads="srcs", limits=[_tensors, _hbm_only, _one_pair])
def collective_permute(srcs: Any, dsts: Any, source_target_pairs: Any, priority: int | None = None, name: str | None = None) -> None:
    """The tensor of each source rank goes to its target rank."""


@_meets(collective_permute)
def _(ranks: Participants, i: Instruction) -> None:
    sent = {source: _raw(ranks[source], "srcs", 0) for source, _ in i.attrs["source_target_pairs"]}
    for source, target in i.attrs["source_target_pairs"]:
        _put(ranks[target], 0, sent[source])


def _channels(call: Call) -> None:
    ids, count = list(call["channel_ids"]), len(call["dsts"])
    if ids != list(range(len(ids))) or len(ids) != count or count > 4:
        call.fail(f"channel_ids are consecutive from 0, one for each pair of tensors, at most 4; got {ids} for {count}")


@opcode("dma", writes="dsts", reads="srcs", limits=[_tensors, _channels])
def _ring_step(srcs: Any, dsts: Any, replica_group: ReplicaGroup, channel_ids: Any, priority: Any = None, name: str | None = None) -> None:
    """A step of a ring, per channel."""


@_meets(_ring_step)
def _(ranks: Participants, i: Instruction) -> None:
    for k in range(_count(i)):
        sent = [_raw(m, "srcs", k) for m in ranks]
        for position, meeting in enumerate(ranks):
            _put(meeting, k, sent[position - 1])


@opcode("dma", writes="dsts", reads="srcs srcs1", limits=[_tensors, _channels, _reduction])
def _ring_step_reduce(
    srcs: Any, srcs1: Any, dsts: Any, replica_group: ReplicaGroup, op: Any, channel_ids: Any, priority: Any = None, name: str | None = None
) -> None:
    """A step of a ring with a reduction, per channel."""


@_meets(_ring_step_reduce)
def _(ranks: Participants, i: Instruction) -> None:
    for k in range(_count(i)):
        sent = [combine(i.attrs["op"], _values(m, "srcs", k), _values(m, "srcs1", k)) for m in ranks]
        for position, meeting in enumerate(ranks):
            _put_values(meeting, k, sent[position - 1])


def _flat(by_channel: Any) -> list[NkiTensor]:
    if any(len(inner) != 1 for inner in by_channel):
        raise NkiValidationError(f"{trace.where()}each channel has exactly one tensor")
    return [inner[0] for inner in by_channel]


def collective_permute_implicit(
    srcs_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: ReplicaGroup,
    channel_ids: Any = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """A step of a ring per channel: send to the successor in the list, receive from the predecessor."""
    return _ring_step(_flat(srcs_by_channel), _flat(dsts_by_channel), replica_group, channel_ids, priority=priority, name=name)


def collective_permute_implicit_reduce(
    srcs0_by_channel: Any,
    srcs1_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: ReplicaGroup,
    op: Any,
    channel_ids: Any = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> Any:
    """A step of a ring: send ``op(srcs0, srcs1)`` to the successor, receive the predecessor's."""
    srcs, others = _flat(srcs0_by_channel), _flat(srcs1_by_channel)
    return _ring_step_reduce(srcs, others, _flat(dsts_by_channel), replica_group, op, channel_ids, priority=priority, name=name)


# Counts that are known only when the kernel runs.


def _metadata(call: Call) -> None:
    _one_pair(call)
    metadata, rows = call.access("metadata_tensor"), 4 if call["has_rdispls"] else 3
    n = max(len(ranks) for ranks in call["replica_group"].rank_lists)
    if metadata.dtype.name != "uint32" or metadata.size != rows * n:
        call.fail(f"metadata_tensor is uint32 ({rows}, {n}), got {metadata.dtype} {metadata.shape}")


_V: Any = {"writes": "dsts metadata_tensor", "reads": "srcs", "read_write": "metadata_tensor"}


def _no_displacements(call: Call) -> None:
    if call["has_rdispls"]:
        call.fail("has_rdispls is not supported by all_gather_v")


@opcode("dma", **_V, limits=[_tensors, _hbm_only, _metadata, _no_displacements])
def all_gather_v(
    srcs: Any,
    dsts: Any,
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Each rank sends ``src[displ : displ + count]`` to all; the chunk of rank ``r`` lands in slot ``r`` of ``dst``."""


@opcode("dma", **_V, limits=[_tensors, _hbm_only, _metadata])
def all_to_all_v(
    srcs: Any,
    dsts: Any,
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> None:
    """Each rank sends ``src[displs[r] : displs[r] + counts[r]]`` to rank ``r`` of the list; metadata rows: send counts, send
    displacements, receive counts (written unless known), receive displacements."""


def _rows_of(meeting: Rendezvous, n: int) -> torch.Tensor:
    access = meeting.instruction.operands["metadata_tensor"]
    assert isinstance(access, AccessPattern)
    return numerics.bits(meeting.binder.raw(access)().clone(), access.dtype).reshape(-1, n)


def _variable(ranks: Participants, i: Instruction, chunk: Callable[[torch.Tensor, int], tuple[int, int]]) -> None:
    """``chunk(metadata of the sender, position of the receiver)`` gives count and displacement."""
    n = len(ranks)
    tables = [_rows_of(m, n) for m in ranks]
    sources = [_raw(m, "srcs", 0).reshape(-1) for m in ranks]
    for position, meeting in enumerate(ranks):
        dst = _raw(meeting, "dsts", 0).reshape(-1)
        mine = tables[position].clone()
        for sender in range(n):
            count, start = chunk(tables[sender], position)
            place = int(mine[3, sender]) if i.attrs["has_rdispls"] else dst.numel() // n * sender
            if start + count > sources[sender].numel() or place + count > dst.numel():
                raise NkiValidationError(f"{i.line}: Out-of-bound access: {i.opcode} moves {count} elements from {start} to {place}")
            dst[place : place + count] = sources[sender][start : start + count]
            if not i.attrs["recv_counts_known"]:
                mine[2, sender] = count
        _put(meeting, 0, dst)
        access = meeting.instruction.operands["metadata_tensor"]
        assert isinstance(access, AccessPattern)
        meeting.binder.raw_store(access)(numerics.from_bits(mine, access.dtype).reshape(access.shape))


@_meets(all_gather_v)
def _(ranks: Participants, i: Instruction) -> None:
    _variable(ranks, i, lambda table, receiver: (int(table[0, 0]), int(table[1, 0])))


@_meets(all_to_all_v)
def _(ranks: Participants, i: Instruction) -> None:
    _variable(ranks, i, lambda table, receiver: (int(table[0, receiver]), int(table[1, receiver])))


# Who am I?


def _written(call: Call) -> None:
    call.registers[1].append(call["dst"])


@opcode("sync", writes="", limits=[_written])
def _load_rank(dst: Register, replica_group: Any = None, iteration_id: int = 0, name: str | None = None) -> None:
    """A register with a rank's number."""


@_load_rank.semantics
def _(i: Instruction, bind: Binder) -> Any:
    group, back, rank = i.attrs["replica_group"], i.attrs["iteration_id"], bind.simulator.rank
    value = rank
    for ranks in group.rank_lists if group is not None else ():
        if rank in ranks:
            value = ranks[(list(ranks).index(rank) - back) % len(ranks)]
    registers, dst = bind.registers, i.attrs["dst"]
    return lambda: registers.__setitem__(dst, value)


def rank_id(name: str | None = None) -> Register:
    """A register with the rank of the caller."""
    register = trace.current("nki.collectives.rank_id").register("rank")
    _load_rank(register, name=name)
    return register


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int, replica_group: ReplicaGroup, channel_id: int = 0, name: str | None = None
) -> Register:
    """A register with the rank whose data is processed in step ``iteration_id`` of a ring; in step 0 the own rank."""
    register = trace.current("nki.collectives").register("rank")
    _load_rank(register, replica_group, iteration_id, name=name)
    return register
