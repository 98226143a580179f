"""The enums of ``nki.isa``."""

from __future__ import annotations

import enum

from torch_neuronx.nki.instruction import Engine as engine


class reduce_cmd(enum.IntEnum):
    """What an instruction does with its engine's reduce registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(enum.IntEnum):
    """Who generates a DMA's descriptors."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(enum.IntEnum):
    """What happens to rows at indices out of range."""

    error = 0
    skip = 1


class matmul_perf_mode(enum.Enum):
    """Faster modes of the Tensor engine."""

    none = "none"
    double_row = "double_row"
    double_column = "double_column"
    double_pixel = "double_pixel"
    double_row_gen3 = "double_row"  # its name in beta 1  # noqa: PIE796


class nc_version(enum.IntEnum):
    """NeuronCore generations; they order, and compare with ints."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class dma_engine(enum.IntEnum):
    """What moves the data of ``sendrecv``."""

    dma = 1
    gpsimd_dma = 2


tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine, sync_engine = engine.gpsimd, engine.unknown, engine.sync

__all__ = [
    "dge_mode",
    "dma_engine",
    "engine",
    "gpsimd_engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "scalar_engine",
    "sync_engine",
    "tensor_engine",
    "unknown_engine",
    "vector_engine",
]
