"""What a DMA costs: which rows it moves, over how many DMA engines, and who makes its descriptors. Collectives are DMAs too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch_neuronx.nki.cost_parameters import DMA_ENGINES, PARAMETERS, PARTITIONS_PER_DMA_ENGINE, CostParameters
from torch_neuronx.nki.instruction import Instruction
from torch_neuronx.nki.memory import AccessPattern
from torch_neuronx.nki.target import Target

HOP_NS = 1500.0  # a step of a ring inside a node; documented as 1 to 2 us
MIN_CHUNK = 512  # bytes: a copy within HBM is cut into 16 parts no smaller than this


class Transfer(NamedTuple):
    """``engine_ns``: busy time of each of the ``engines`` DMA engines. ``rows``: descriptor elements of all of them together."""

    bytes: int
    hbm_bytes: int  # read from and written to HBM
    rows: int
    run: int  # bytes of a row
    engines: int
    engine_ns: float
    start_ns: float  # from the trigger until the first byte moves, over the fixed latency: descriptor generation in hardware
    gpsimd_cycles: float  # descriptor generation in software


def row_ns(run: int, p: CostParameters) -> float:
    """Time that one DMA engine needs for a contiguous row of ``run`` bytes."""
    return max(p.dma_row_floor_ns, run / p.dma_bytes_per_ns + p.dma_row_ns)


def transfer(i: Instruction, target: Target) -> Transfer:
    """The transfer that a DMA instruction makes (modelled)."""
    if i.opcode in COLLECTIVES:
        return _collective(i, target)
    p = PARAMETERS[target.name]
    written = i.writes[0]
    sources = [a for a in i.reads if a.size == written.size] or [written]
    data = [written, *sources]
    size = max(a.size * a.itemsize for a in data)
    # A transposing DMA reads rows whole and writes them as columns, so the source's rows count. A row on chip never leaves its partition.
    run = min(a.contiguous_run for a in (sources if i.opcode == "dma_transpose" else data))
    on_chip = [a for a in data if a.region.on_chip]
    if on_chip:
        partitions = max(a.partitions for a in on_chip)
        engines = min(DMA_ENGINES, math.ceil(partitions / PARTITIONS_PER_DMA_ENGINE))
    else:
        engines = min(DMA_ENGINES, max(1, size // MIN_CHUNK))
        run = min(run, math.ceil(size / engines))
    rows = math.ceil(size / max(run, 1))
    engine_ns = math.ceil(rows / engines) * row_ns(run, p) * _slowdown(i, sources, target)
    mode = str(i.attrs.get("dge") or "")
    return Transfer(
        bytes=size,
        hbm_bytes=sum(a.size * a.itemsize for a in data if a.region.is_hbm),
        rows=rows,
        run=run,
        engines=engines,
        engine_ns=engine_ns,
        start_ns=p.hwdge_ns if "hwdge" in mode else 0.0,
        gpsimd_cycles=rows * p.swdge_cycles if "swdge" in mode else 0.0,
    )


class Ring(NamedTuple):
    """A collective of n ranks as a ring, without knowledge of the topology: which operand counts, times what, in how many steps."""

    operand: str
    factor: Callable[[int], float]  # the bus factors of nccom-test
    steps: Callable[[int], int]


def _others(n: int) -> float:
    return (n - 1) / n


COLLECTIVES = {
    "all_reduce": Ring("dsts", lambda n: 2 * _others(n), lambda n: 2 * (n - 1)),
    "all_gather": Ring("dsts", _others, lambda n: n - 1),
    "all_gather_v": Ring("dsts", _others, lambda n: n - 1),
    "reduce_scatter": Ring("srcs", _others, lambda n: n - 1),
    "all_to_all": Ring("srcs", _others, lambda n: n - 1),
    "all_to_all_v": Ring("srcs", _others, lambda n: n - 1),
    "collective_permute": Ring("srcs", lambda n: 1.0, lambda n: 1),
    "_ring_step": Ring("srcs", lambda n: 1.0, lambda n: 1),
    "_ring_step_reduce": Ring("srcs", lambda n: 1.0, lambda n: 1),
}


def _collective(i: Instruction, target: Target) -> Transfer:
    """At the rate of this core's DMA engines: the links between chips are not modelled, nor the wait for other ranks."""
    ring = COLLECTIVES[i.opcode]
    group = i.attrs.get("replica_group")
    ranks = max((len(r) for r in group.rank_lists), default=2) if group is not None else 2
    tensors: list[AccessPattern] = i.operands[ring.operand]  # type: ignore[assignment]
    size = math.ceil(sum(a.size * a.itemsize for a in tensors) * ring.factor(ranks))
    return Transfer(
        bytes=size,
        hbm_bytes=sum(a.size * a.itemsize for a in (*i.reads, *i.writes) if a.region.is_hbm),
        rows=DMA_ENGINES,
        run=math.ceil(size / DMA_ENGINES),
        engines=DMA_ENGINES,
        engine_ns=size / DMA_ENGINES / PARAMETERS[target.name].dma_bytes_per_ns,
        start_ns=ring.steps(ranks) * HOP_NS,
        gpsimd_cycles=0.0,
    )


def _slowdown(i: Instruction, sources: list[AccessPattern], target: Target) -> float:
    """Over a plain copy: the transposing and the computing path."""
    if i.opcode == "dma_transpose":
        return 1 / 0.9 if sources[0].region.is_hbm else 1 / 0.5
    if i.opcode == "dma_compute":
        return 1.0 if target.generation >= 4 else 2.0
    return 1.0
