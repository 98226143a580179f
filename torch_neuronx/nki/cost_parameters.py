"""The numbers of the cost model that are not formulas: what they are, per generation, and where each comes from.

``basis`` of a parameter: "documented" (AWS's public guides), "fitted" (to a published measurement; docs/nki-calibration.md says which),
"assumed" (nothing is published).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

MIN_INITIATION = 64  # cycles between the starts of two instructions of an engine (documented as "roughly 64")
DYNAMIC_ADDRESS = 600  # cycles that an instruction with an address from a register takes at least (older documents)
STRIDE_BYTES = 16  # an innermost stride this long halves the bandwidth of that operand's interface (documented)
DMA_ENGINES = 16
PARTITIONS_PER_DMA_ENGINE = 8


def _parameter(basis: str, why: str) -> float:
    return field(metadata={"basis": basis, "why": why})


@dataclass(frozen=True)
class CostParameters:
    """Times in nanoseconds, latencies in cycles of the engine that wrote."""

    dma_bytes_per_ns: float = _parameter("fitted", "payload rate of one DMA engine with deep queues")
    dma_row_ns: float = _parameter("fitted", "added to each contiguous row")
    dma_row_floor_ns: float = _parameter("fitted", "least time of a row")
    dma_latency_ns: float = _parameter("documented", "trigger to semaphore, beside the transfer")
    hwdge_ns: float = _parameter("documented", "descriptors made by the hardware block")
    swdge_cycles: float = _parameter("assumed", "GpSimd cycles for a descriptor made by software")
    trigger_ns: float = _parameter("assumed", "issue slot of a DMA on the engine that triggers it")
    semaphore_cycles: float = _parameter("assumed", "signal from one engine to another")
    tensor_latency: float = _parameter("assumed", "end of a matmul until PSUM may be read: the array's depth")
    vector_latency: float = _parameter("documented", "between dependent instructions of the Vector Engine: about 100 cycles")
    scalar_latency: float = _parameter("fitted", "dependent [P, 1] activations start every 264 cycles, 64 of them are the issue interval")
    gpsimd_latency: float = _parameter("assumed", "as the Vector Engine")

    @classmethod
    def describe(cls) -> list[tuple[str, str, str]]:
        """``(name, basis, what it is)`` of every parameter."""
        return [(f.name, f.metadata["basis"], f.metadata["why"]) for f in fields(cls)]


# trn1's rate is fitted to one of the four published matmul times. The rows of trn2 are fitted to the published throughput chart; trn3 has
# none of its own, so it takes trn2's overheads and its own documented rate.
_COMMON = {
    "dma_latency_ns": 1300.0,
    "swdge_cycles": 4.0,
    "trigger_ns": 50.0,
    "semaphore_cycles": 64.0,
    "tensor_latency": 128.0,
    "vector_latency": 100.0,
    "scalar_latency": 200.0,
    "gpsimd_latency": 100.0,
}
PARAMETERS = {
    "trn1": CostParameters(dma_bytes_per_ns=6.44, dma_row_ns=0.0, dma_row_floor_ns=34.0, hwdge_ns=0.0, **_COMMON),
    "trn2": CostParameters(dma_bytes_per_ns=23.0, dma_row_ns=6.0, dma_row_floor_ns=108.0, hwdge_ns=600.0, **_COMMON),
    "trn3": CostParameters(dma_bytes_per_ns=33.0, dma_row_ns=6.0, dma_row_floor_ns=108.0, hwdge_ns=600.0, **_COMMON),
}
