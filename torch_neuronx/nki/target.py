"""Numbers of a NeuronCore per generation, as published by AWS (NKI architecture guides; sizes in bytes, clocks in GHz)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch_neuronx.config import DEFAULT_INSTANCE

PARTITIONS = 128
PSUM_BANKS = 8
PSUM_BANK_BYTES = 2048
PSUM_BYTES = PSUM_BANKS * PSUM_BANK_BYTES  # per partition
QUADRANT = 32

_CODES = {"trn1": "trn1", "inf2": "trn1", "gen2": "trn1", "trn2": "trn2", "gen3": "trn2", "trn3": "trn3", "gen4": "trn3"}


@dataclass(frozen=True)
class Target:
    """One NeuronCore of a generation."""

    name: str  # trn1, trn2 or trn3
    generation: int  # NeuronCore-v2, v3, v4
    sbuf_bytes: int  # per partition
    sbuf_reserved_bytes: int  # of these, what descriptor generation and the runtime keep for themselves (see `sbuf_usable_bytes`)
    tensor_ghz: float
    vector_ghz: float
    scalar_ghz: float
    gpsimd_ghz: float
    dma_bytes_per_ns: float  # effective, per DMA engine; a core has 16
    hbm_bytes_per_ns: float  # a core's share of the device's HBM bandwidth

    @property
    def sbuf_usable_bytes(self) -> int:
        """Bytes of a partition that a kernel may address. AWS publishes no figure; a public kernel subtracts 16384 and 8 on trn2."""
        return self.sbuf_bytes - self.sbuf_reserved_bytes


TARGETS = {
    "trn1": Target("trn1", 2, 192 * 1024, 16384 + 8, 2.8, 1.12, 1.4, 1.4, 17.0, 820.0 / 2),
    "trn2": Target("trn2", 3, 224 * 1024, 16384 + 8, 2.4, 0.96, 1.2, 1.2, 23.0, 2900.0 / 8),
    "trn3": Target("trn3", 4, 256 * 1024, 16384 + 8, 2.4, 1.2, 1.2, 1.2, 33.0, 4900.0 / 8),
}


def target(name: str) -> Target:
    """The target that AWS knows by ``name``.

    Raises:
        ValueError: no such name.
    """
    try:
        return TARGETS[_CODES[name.lower()]]
    except KeyError:
        raise ValueError(f"unknown NKI target {name!r}. Use one of {', '.join(_CODES)}") from None


def current_target(platform: str | None = None) -> Target:
    """The target that kernels are traced for: ``NEURON_PLATFORM_TARGET_OVERRIDE``, else ``NKI_NC_VERSION``, else ``platform``, else the
    generation of the emulated instance (``TORCH_NEURONX_EMULATED_INSTANCE``), which is what tensors on ``neuron`` lie on: trn2 when it is
    not set."""
    for variable in ("NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_NC_VERSION"):
        if name := os.environ.get(variable):
            return target(name)
    if platform is not None:
        return target(platform)
    instance = os.environ.get("TORCH_NEURONX_EMULATED_INSTANCE") or DEFAULT_INSTANCE
    return target(instance[:4])
