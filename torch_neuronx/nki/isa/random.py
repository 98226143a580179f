"""Random numbers. AWS documents the generator (XORWOW, one state of six words per lane) but not its sequences, so these are our own.

The states belong to the emulated engines: they live as long as the process, one set per core, and start from a fixed seed.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.nki import numerics
from torch_neuronx.nki.instruction import Engine, Instruction
from torch_neuronx.nki.isa.constants import engine
from torch_neuronx.nki.limits import dtype_in, float_operand, in_sbuf, on_chip, same_dtype, same_elements, same_partitions, vector_operand
from torch_neuronx.nki.memory import AccessPattern, MemoryRegion
from torch_neuronx.nki.opcode import Call, opcode
from torch_neuronx.nki.simulator import Binder, Step
from torch_neuronx.nki.target import PARTITIONS
from torch_neuronx.nki.tensor import NkiTensor

_MASK = 0xFFFFFFFF
_LANES = {Engine.gpsimd: 1, Engine.vector: 4}  # states per partition


class Xorwow:
    """Marsaglia's generator, one per lane: ``state`` is int64 ``[partitions, lanes, 6]`` (x, y, z, w, v, counter)."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Words from a counter hash (splitmix64), so that lanes are unrelated."""
        index = torch.arange(PARTITIONS * self.lanes * 6).reshape(PARTITIONS, self.lanes, 6)
        value = (index + 1) * -0x61C8864680B583EB + seed
        for multiplier, shift in ((-0x40A7B892E31B1A47, 30), (-0x6B2FB644ECCEEE15, 27)):
            value = (value ^ ((value >> shift) & ((1 << (64 - shift)) - 1))) * multiplier
        self.state = (value ^ ((value >> 31) & ((1 << 33) - 1))) & _MASK

    def draw(self, partitions: int, count: int, start: int = 0) -> torch.Tensor:
        """int64 ``[partitions, count]`` of 32 random bits, from the lanes of the partitions from ``start`` on."""
        rows = slice(start, start + partitions)
        x, y, z, w, v, d = self.state[rows].unbind(2)
        columns = []
        for _ in range(-(-count // self.lanes)):
            t = x ^ (x >> 2)
            x, y, z, w = y, z, w, v
            v = (v ^ (v << 4) ^ t ^ (t << 1)) & _MASK
            d = (d + 362437) & _MASK
            columns.append((v + d) & _MASK)
        self.state[rows] = torch.stack([x, y, z, w, v, d], 2)
        return torch.stack(columns, 1).reshape(partitions, -1)[:, :count]


_generators: dict[tuple[int, Engine], Xorwow] = {}


def generator(core: int, which: Engine) -> Xorwow:
    """The generator of an engine of a core."""
    if (core, which) not in _generators:
        _generators[core, which] = Xorwow(_LANES[which])
    return _generators[core, which]


def uniform(bits: torch.Tensor) -> torch.Tensor:
    """float32 in [0, 1) from 32 bits."""
    return (bits >> 8).float() * 2.0**-24


def _prob(call: Call) -> None:
    prob = call["prob"]
    if isinstance(prob, AccessPattern):
        wanted_float32 = call.access("data").dtype.is_integer
        if not prob.dtype.is_float or (wanted_float32 and prob.dtype.name != "float32"):
            call.fail(f"prob must be floating point (float32 for integer data), got {prob.dtype}", ValueError)
    elif not 0 <= float(prob) <= 1:
        call.fail(f"prob must be 0 to 1, got {prob}", ValueError)


@opcode(
    "vector",
    reads="data prob",
    numbers="prob",
    limits=[on_chip("dst", "data"), same_dtype("dst", "data"), same_elements("dst", "data"), vector_operand("prob"), _prob],
)
def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> None:
    """Sets elements to 0 with probability ``prob``."""


@dropout.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data = i.accesses("dst", "data")
    shape = (dst.partitions, dst.free_size)
    load, put, prob = bind.raw(data, shape), bind.raw_store(dst, shape), bind.per_partition(i.operands["prob"], 2)
    source = generator(bind.core, Engine.vector)

    def step() -> None:
        keep = uniform(source.draw(*shape, start=dst.start_partition)) >= prob()
        x = load()
        put(torch.where(keep, x, torch.zeros((), dtype=x.dtype)))

    return step


def _rng_region(call: Call) -> None:
    if call.engine is Engine.gpsimd and call.access("dst").region is not MemoryRegion.sbuf:
        call.fail("on the gpsimd engine writes SBUF only")


@opcode(
    "vector gpsimd",
    limits=[on_chip("dst"), dtype_in("dst", "int8", "int16", "int32", "uint8", "uint16", "uint32"), _rng_region],
    generations={"gpsimd": "trn2"},
)
def rng(dst: NkiTensor, engine: Engine = engine.vector, name: str | None = None) -> None:
    """32 random bits for each element, of which the low ones are kept."""


@rng.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst,) = i.accesses("dst")
    shape, source, dtype = (dst.partitions, dst.free_size), generator(bind.core, i.engine), dst.dtype
    put = bind.raw_store(dst, shape)
    return lambda: put(numerics.from_bits(source.draw(*shape, start=dst.start_partition), dtype))


def _rand_bounds(call: Call) -> None:
    low, high = call["min"], call["max"]
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and not low < high:
        call.fail(f"min must be below max, got {low} and {high}", ValueError)


@opcode(
    "vector",
    reads="min max",
    numbers="min max",
    since="trn3",
    limits=[on_chip("dst"), vector_operand("min", "max"), float_operand("min", "max"), same_partitions("dst", "min", "max"), _rand_bounds],
)
def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> None:
    """Uniform float32 in [min, max], cast to the dtype of ``dst``."""


@rand2.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst,) = i.accesses("dst")
    shape, source = (dst.partitions, dst.free_size), generator(bind.core, Engine.vector)
    low, high, store = bind.per_partition(i.operands["min"], 2), bind.per_partition(i.operands["max"], 2), bind.store(dst, shape)

    def step() -> None:
        a = low()
        store(uniform(source.draw(*shape, start=dst.start_partition)) * (high() - a) + a)

    return step


def _one_word(call: Call) -> None:
    src = call.access("src_seeds")
    if src.size != 1 or src.itemsize != 4:
        call.fail(f"src_seeds is a [1, 1] tensor of a 32-bit dtype, got {src.shape} {src.dtype}")


@opcode("vector", writes="", reads="src_seeds", limits=[on_chip("src_seeds"), _one_word])
def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> None:
    """Seeds the Vector engine's generator."""


@set_rng_seed.semantics
def _(i: Instruction, bind: Binder) -> Step:
    load, source = bind.raw(i.accesses("src_seeds")[0], (1,)), generator(bind.core, Engine.vector)
    return lambda: source.seed(int(load().view(torch.int32)) & _MASK)


def _state_words(name: str) -> Any:
    def check(call: Call) -> None:
        words = 6 * _LANES[call.engine]
        if call.access(name).free_size != words:
            call.fail(f"{name} has {words} words per partition on the {call.engine.name} engine, got {call.access(name).shape}")

    return check


@opcode(
    "gpsimd vector",
    writes="",
    reads="src_seeds",
    since="trn2",
    limits=[in_sbuf("src_seeds"), dtype_in("src_seeds", "uint32"), _state_words("src_seeds")],
    generations={"vector": "trn3"},
)
def rand_set_state(src_seeds: NkiTensor, engine: Engine = engine.gpsimd, name: str | None = None) -> None:
    """Loads the generator's state of each partition."""


@rand_set_state.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (src,) = i.accesses("src_seeds")
    source, load, dtype = generator(bind.core, i.engine), bind.raw(src, (src.partitions, src.free_size)), src.dtype

    def step() -> None:
        rows = slice(src.start_partition, src.start_partition + src.partitions)
        source.state[rows] = numerics.bits(load(), dtype).reshape(src.partitions, -1, 6)

    return step


def _state_region(call: Call) -> None:
    if call.access("dst").region is MemoryRegion.psum and (call.engine is Engine.gpsimd or call.target.generation < 4):
        call.fail("writes PSUM on the vector engine of trn3 only")


@opcode(
    "gpsimd vector",
    since="trn2",
    limits=[on_chip("dst"), dtype_in("dst", "uint32"), _state_words("dst"), _state_region],
    generations={"vector": "trn3"},
)
def rand_get_state(dst: NkiTensor, engine: Engine = engine.gpsimd, name: str | None = None) -> None:
    """Stores the generator's state of each partition."""


@rand_get_state.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst,) = i.accesses("dst")
    source, put, dtype = generator(bind.core, i.engine), bind.raw_store(dst, (dst.partitions, dst.free_size)), dst.dtype
    rows = slice(dst.start_partition, dst.start_partition + dst.partitions)
    return lambda: put(numerics.from_bits(source.state[rows].reshape(dst.partitions, -1), dtype))
