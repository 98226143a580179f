"""Cycles of an instruction, per opcode, engine and generation.

The formulas are AWS's published ones: those of the current guides, and those that older API pages printed (trn1 era) and nothing has
replaced. ``N`` is the number of elements per partition of the widest operand. Where nothing is published a row says "assumed". All
results are modelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch_neuronx.nki import (
    collectives,  # noqa: F401  (it, isa and language fill OPCODES)
    cost_dma,
    isa,  # noqa: F401
    language,  # noqa: F401
)
from torch_neuronx.nki.cost_parameters import DYNAMIC_ADDRESS, MIN_INITIATION, PARAMETERS, STRIDE_BYTES
from torch_neuronx.nki.instruction import Engine, Instruction
from torch_neuronx.nki.memory import AccessPattern, MemoryRegion
from torch_neuronx.nki.opcode import OPCODES
from torch_neuronx.nki.target import Target

Formula = Callable[[Instruction, Target], float]


class Cycles(NamedTuple):
    """Modelled cost on the instruction's engine, in cycles of its clock.

    ``busy``: until the engine may start its next instruction. ``latency``: from then until what was written may be used.
    For a DMA the clock is 1 GHz (so both are nanoseconds): ``busy`` is the time of the DMA engines it is spread over.
    """

    busy: float
    latency: float


class CostRow(NamedTuple):
    formula: Formula
    basis: str  # documented, older documents, derived (from documented figures) or assumed
    text: str  # the formula as the documents print it


# --- operands ---------------------------------------------------------------------------------------------------------------------------


def _on_chip(i: Instruction) -> list[AccessPattern]:
    return [a for a in (*i.reads, *i.writes) if a.region.on_chip]


def _access(i: Instruction, *names: str) -> AccessPattern:
    """The first of the operands ``names`` that is a tensor."""
    for name in names:
        operand = i.operands.get(name)
        if isinstance(operand, AccessPattern):
            return operand
    raise KeyError(f"{i!r} has no tensor among {names}")


def width(i: Instruction) -> int:
    """N: elements per partition of the widest operand."""
    return max((a.free_size for a in _on_chip(i)), default=1)


def _in_sbuf(*accesses: AccessPattern) -> bool:
    return all(a.region is MemoryRegion.sbuf for a in accesses)


def _unit_stride(a: AccessPattern) -> bool:
    inner = a.free_pattern[-1:]
    return not inner or inner[0][0] == 1


def _fast_dtype(a: AccessPattern, target: Target) -> bool:
    """16-bit floats (from v4 also 8-bit ones): what the wide modes of the Vector Engine take."""
    return a.dtype.name in ("bfloat16", "float16") or (target.generation >= 4 and a.dtype.is_float and a.itemsize == 1)


def _tensors(i: Instruction) -> list[AccessPattern]:
    """The operands that are walked along the free dimension: all but per-partition scalars."""
    n = width(i)
    return [a for a in _on_chip(i) if a.free_size == n] or _on_chip(i)


# --- formulas ---------------------------------------------------------------------------------------------------------------------------


def _elements(factor: float = 1.0, extra: float = 0.0) -> Formula:
    return lambda i, target: max(MIN_INITIATION, factor * width(i)) + extra


def _one_input(i: Instruction, target: Target) -> float:
    """Copies and tensor-scalar operations: N, less in the wide modes."""
    n: float = width(i)
    if i.engine is Engine.scalar:
        return max(MIN_INITIATION, n / _scalar_rate(i, target))
    if i.engine is Engine.vector and target.generation >= 3:
        n = n / _wide_rate(_tensors(i), target)
    return max(MIN_INITIATION, n)


def _wide_rate(operands: list[AccessPattern], target: Target) -> int:
    """Elements per lane and cycle of a one-input Vector instruction from v3."""
    contiguous = all(_unit_stride(a) for a in operands)
    if all(_fast_dtype(a, target) for a in operands):
        if _in_sbuf(*operands):
            return 4 if contiguous else 2
        return 2 if contiguous else 1
    return 2 if contiguous and _in_sbuf(*operands) else 1


def _scalar_rate(i: Instruction, target: Target) -> int:
    return 2 if target.generation >= 4 and all(_fast_dtype(a, target) for a in _tensors(i)) else 1


def _activation(i: Instruction, target: Target) -> float:
    reads_out = isinstance(i.operands.get("reduce_res"), AccessPattern)
    return max(MIN_INITIATION, width(i) / _scalar_rate(i, target)) + (MIN_INITIATION if reads_out else 0)


def _memset(i: Instruction, target: Target) -> float:
    dst = i.writes[0]
    halved = i.operands.get("value") == 0 and dst.dtype.name in ("bfloat16", "float16")
    return max(MIN_INITIATION, dst.free_size / (2 if halved else 1))


def _tensor_tensor(i: Instruction, target: Target) -> float:
    """N when the two inputs come from two memories, or for simple bf16 arithmetic on contiguous data; else 2 N; half of that from v3 when
    all is 16-bit in SBUF."""
    n = width(i)
    inputs = [_access(i, "data1"), _access(i, "data2", "data1")]
    operands = [*inputs, *i.writes]
    if i.engine is Engine.gpsimd:
        return max(MIN_INITIATION, 2 * n)
    both_sbuf = _in_sbuf(*inputs)
    simple = i.attrs.get("op") in ("add", "multiply", "subtract") and all(_unit_stride(a) and a.dtype.name == "bfloat16" for a in operands)
    cycles: float = n if not both_sbuf or simple else 2 * n
    if target.generation >= 3 and both_sbuf and all(_fast_dtype(a, target) for a in operands):
        cycles /= 2
    return max(MIN_INITIATION, cycles)


def _split_or_two(first: str, second: str) -> Formula:
    """N when the two named operands lie in two memories, else 2 N."""

    def formula(i: Instruction, target: Target) -> float:
        operands = [o for o in (i.operands.get(first), i.operands.get(second)) if isinstance(o, AccessPattern)]
        split = len({a.region for a in operands}) == len(operands)
        return max(MIN_INITIATION, width(i) * (1 if split else 2))

    return formula


def _scalar_tensor_tensor(i: Instruction, target: Target) -> float:
    n = width(i)
    bf16 = all(_access(i, name).dtype.name == "bfloat16" for name in ("data", "operand1"))
    fast = bf16 and i.attrs.get("op0") == "subtract" and i.attrs.get("op1") == "multiply" and n % 2 == 0
    return max(MIN_INITIATION, n if fast else 2 * n)


def _tensor_reduce(i: Instruction, target: Target) -> float:
    n = width(i)
    bf16 = all(a.dtype.name == "bfloat16" for a in (*i.reads, *i.writes))
    return max(MIN_INITIATION, n / 2 if bf16 and i.attrs.get("op") in ("add", "maximum", "max") else n)


def _matmul(i: Instruction, target: Target) -> float:
    stationary, moving = _access(i, "stationary"), _access(i, "moving")
    columns = moving.free_size // _rows_per_cell(i)
    passes = 4 if moving.dtype.name == "float32" else 1
    if i.attrs.get("is_transpose") and passes == 4 and target.generation >= 3:
        passes = 2  # the transpose mode of v3 is twice as fast for fp32
    return passes * max(min(MIN_INITIATION, stationary.free_size), columns)


def _rows_per_cell(i: Instruction) -> int:
    """Rows of the contraction that a cell of the array multiplies at once: 2 in double-row mode, whose operands are ``[P, 2, F]``."""
    return 2 if "double_row" in str(i.attrs.get("perf_mode") or "") else 1


def _transpose(i: Instruction, target: Target) -> float:
    data = _access(i, "data")
    if i.engine is Engine.vector:
        return max(MIN_INITIATION, data.free_size)
    passes = (2 if target.generation >= 3 else 4) if data.itemsize == 4 else 1
    return passes * max(data.partitions, min(MIN_INITIATION, data.free_size))


def _local_gather(i: Instruction, target: Target) -> float:
    e = int(i.attrs.get("num_elem_per_idx") or 1)
    indices = _access(i, "index")
    per_group = indices.free_size * 16
    rate = ((28 + 4 * e) / (4 * e)) / min(4 / _access(i, "src_buffer").itemsize, e)
    return 150 + per_group * e * rate


def _gather(i: Instruction, target: Target) -> float:
    """Groups of 512 elements (documented); the time of a group is assumed to be 150 + N."""
    n = _access(i, "indices").free_size
    return 150 * math.ceil(n / 512) + n


def _topk(i: Instruction, target: Target) -> float:
    n = i.attrs.get("n") or i.operands.get("n") or 1
    return 4 * float(n) + _access(i, "val_dst").free_size  # type: ignore[arg-type]


def _fixed(cycles: float) -> Formula:
    return lambda i, target: cycles


def _dma(i: Instruction, target: Target) -> float:
    return cost_dma.transfer(i, target).engine_ns


_N = "max(64, N)"
_OLD, _DOC, _DERIVED, _ASSUMED = "older documents", "documented", "derived", "assumed"

COSTS: dict[str, CostRow] = {
    # DMA
    "dma_copy": CostRow(_dma, _DERIVED, "rows x (bytes / rate + overhead), 1300 ns latency"),
    "dma_transpose": CostRow(_dma, _DOC, "copy / 0.9 from HBM, / 0.5 from SBUF"),
    "dma_compute": CostRow(_dma, _DOC, "2 x copy before trn3"),
    "sendrecv": CostRow(_dma, _ASSUMED, "as a copy"),
    # movement on chip
    "tensor_copy": CostRow(_one_input, _OLD, f"{_N}; trn2 Vector: / 4 or / 2 in wide modes; trn3 Scalar: / 2 for 16 bits"),
    "tensor_copy_predicated": CostRow(_split_or_two("src", "predicate"), _OLD, f"{_N}; 2 N with both in SBUF"),
    "memset": CostRow(_memset, _OLD, f"{_N}; N / 2 for zeros of 16 bits"),
    "nc_stream_shuffle": CostRow(_elements(), _OLD, _N),
    "local_gather": CostRow(_local_gather, _OLD, "150 + n e ((28 + 4e) / 4e) / min(4 / bytes, e)"),
    "nc_n_gather": CostRow(_gather, _ASSUMED, "150 ceil(N / 512) + N"),
    # Tensor Engine
    "nc_matmul": CostRow(_matmul, _OLD, "max(min(64, stationary), moving); x 4 for fp32"),
    "nc_matmul_mx": CostRow(_matmul, _DOC, "as bf16, 4 x the contraction"),
    "nc_transpose": CostRow(_transpose, _OLD, f"Tensor: max(P, min(64, F)); Vector: {_N}"),
    # Scalar Engine
    "activation": CostRow(_activation, _OLD, f"{_N}; + 64 to read the sum"),
    "activation_reduce": CostRow(_activation, _OLD, f"{_N} + 64"),
    "activate2": CostRow(_activation, _ASSUMED, "as activation"),
    # Vector Engine
    "tensor_tensor": CostRow(_tensor_tensor, _OLD, f"{_N} or 2 N by memories and dtypes; half from trn2 for 16 bits in SBUF"),
    "tensor_scalar": CostRow(_one_input, _OLD, f"{_N}, one or two operators; wide modes as tensor_copy"),
    "scalar_tensor_tensor": CostRow(_scalar_tensor_tensor, _OLD, "2 N; N for bf16 (x - a) * y"),
    "reciprocal": CostRow(_elements(8), _DOC, "max(64, 8 N)"),
    "exponential": CostRow(_elements(0.25), _DOC, "4 x the rate of the Scalar Engine"),
    "select_reduce": CostRow(_split_or_two("predicate", "on_true"), _ASSUMED, "2 N; N from two memories"),
    "range_select": CostRow(_elements(), _OLD, _N),
    "tensor_reduce": CostRow(_tensor_reduce, _OLD, "N; N / 2 for bf16 sums and maxima"),
    "tensor_scalar_reduce": CostRow(_elements(1, MIN_INITIATION), _OLD, f"{_N} + 64"),
    "tensor_scalar_cumulative": CostRow(_elements(2), _ASSUMED, "2 N, as a scan"),
    "tensor_tensor_scan": CostRow(_elements(2), _OLD, "max(64, 2 N)"),
    "bn_stats": CostRow(_elements(), _OLD, _N),
    "bn_aggr": CostRow(_elements(13 / 3), _OLD, "max(64, 13 N / 3)"),
    "max8": CostRow(_elements(), _OLD, "N"),
    "nc_find_index8": CostRow(_elements(), _OLD, "N"),
    "nc_match_replace8": CostRow(_elements(), _OLD, _N),
    "dropout": CostRow(_elements(), _OLD, _N),
    "quantize_mx": CostRow(_elements(0.25), _DOC, "4 elements per lane and cycle"),
    # GpSimd Engine
    "tensor_partition_reduce": CostRow(_elements(8, 150), _ASSUMED, "150 + 8 N"),
    "iota": CostRow(_elements(1, 150), _OLD, "150 + N"),
    "affine_select": CostRow(_elements(1, 150), _OLD, "150 + N"),
    "nonzero_with_count": CostRow(_elements(4, 150), _ASSUMED, "150 + 4 N"),
    "topk": CostRow(_topk, _DOC, "4 n + K"),
    "sequence_bounds": CostRow(_elements(4, 150), _ASSUMED, "150 + 4 N"),
    # random numbers
    "rng": CostRow(_elements(), _ASSUMED, _N),
    "rand2": CostRow(_elements(0.25), _DOC, "4 values per lane and cycle"),
    "set_rng_seed": CostRow(_fixed(MIN_INITIATION), _ASSUMED, "64"),
    "rand_set_state": CostRow(_elements(), _ASSUMED, _N),
    "rand_get_state": CostRow(_elements(), _ASSUMED, _N),
    # sequencers
    "core_barrier": CostRow(_fixed(1000), _ASSUMED, "1000"),
    "device_print": CostRow(_fixed(MIN_INITIATION), _ASSUMED, "64"),
    **{name: CostRow(_dma, _ASSUMED, "a ring: bytes x bus factor at the core's DMA rate, 1500 ns a step") for name in cost_dma.COLLECTIVES},
    "_load_rank": CostRow(_fixed(MIN_INITIATION), _ASSUMED, "64"),
    "register_move": CostRow(_fixed(MIN_INITIATION), _ASSUMED, "64"),
    "register_load": CostRow(_fixed(DYNAMIC_ADDRESS), _ASSUMED, "600, as a dynamic address"),
    "register_store": CostRow(_fixed(DYNAMIC_ADDRESS), _ASSUMED, "600, as a dynamic address"),
}


def clock_ghz(engine: Engine, target: Target) -> float:
    """Cycles per nanosecond. DMA is counted in nanoseconds; the sync engine's clock is not published and is taken as GpSimd's."""
    return {
        Engine.tensor: target.tensor_ghz,
        Engine.vector: target.vector_ghz,
        Engine.scalar: target.scalar_ghz,
        Engine.gpsimd: target.gpsimd_ghz,
        Engine.sync: target.gpsimd_ghz,
    }.get(engine, 1.0)


def latency(engine: Engine, target: Target) -> float:
    """Cycles (DMA: nanoseconds) from the end of an instruction until what it wrote may be read."""
    p = PARAMETERS[target.name]
    return {
        Engine.tensor: p.tensor_latency,
        Engine.vector: p.vector_latency,
        Engine.scalar: p.scalar_latency,
        Engine.gpsimd: p.gpsimd_latency,
        Engine.dma: p.dma_latency_ns,
    }.get(engine, 0.0)


def cycles(i: Instruction, target: Target) -> Cycles:
    """The modelled cost of one instruction.

    Raises:
        KeyError: the opcode has no row in ``COSTS``.
    """
    row = COSTS.get(i.opcode)
    if row is None:
        raise KeyError(f"the cost model has no row for {i.opcode!r}; add one to COSTS in {__name__}")
    busy = row.formula(i, target)
    if i.engine is not Engine.dma:
        if any(a.is_dynamic for a in (*i.reads, *i.writes)):
            busy = max(DYNAMIC_ADDRESS, busy)
        if i.engine in (Engine.vector, Engine.scalar) and any(_halved_by_stride(a) for a in _tensors(i)):
            busy *= 2
    return Cycles(busy, latency(i.engine, target))


def _halved_by_stride(a: AccessPattern) -> bool:
    inner = a.free_pattern[-1:]
    return bool(inner) and abs(inner[0][0]) * a.itemsize >= STRIDE_BYTES and a.free_size > 1


def is_dma(i: Instruction) -> bool:
    return COSTS[i.opcode].formula is _dma


def rows_per_pass(i: Instruction) -> float:
    """Multiply-adds of a cell of the array in one cycle: 1 for 16 bits, 2 for double-row fp8, 4 for MX, a quarter for fp32."""
    moving = _access(i, "moving")
    return moving.dtype.lanes * _rows_per_cell(i) / (4 if moving.dtype.name == "float32" else 1)


def operations(i: Instruction) -> int:
    """Floating-point operations of the Tensor Engine, as utilisation counts them: 2 per multiply-add; transposes are none."""
    if i.opcode not in ("nc_matmul", "nc_matmul_mx") or i.attrs.get("is_transpose"):
        return 0
    stationary, moving = _access(i, "stationary"), _access(i, "moving")
    rows = moving.partitions * moving.dtype.lanes
    twice = _rows_per_cell(i)
    return 2 * rows * twice * (stationary.free_size // twice) * (moving.free_size // twice)


for _name in COSTS:
    OPCODES[_name].cost = cycles
