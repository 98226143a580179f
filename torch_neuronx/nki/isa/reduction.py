"""Vector engine: reductions, scans, statistics and searches along the free dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_neuronx.nki import numerics, ops
from torch_neuronx.nki.instruction import Instruction
from torch_neuronx.nki.isa.constants import reduce_cmd
from torch_neuronx.nki.isa.elementwise import ReduceRegisters, Vector, binary, is_bits, reduce_dims
from torch_neuronx.nki.limits import (
    alu_op,
    bits_need_integers,
    dtype_in,
    enum_member,
    float_operand,
    max_free,
    no_packed,
    not_both_psum,
    on_chip,
    op_in,
    same_elements,
    same_partitions,
    vector_operand,
)
from torch_neuronx.nki.memory import AccessPattern
from torch_neuronx.nki.opcode import Call, opcode
from torch_neuronx.nki.simulator import Binder, Step
from torch_neuronx.nki.tensor import NkiTensor

REDUCIBLE = [name for name, row in ops.ALU.items() if row.reducible]
BINARY = [name for name, row in ops.ALU.items() if row.kind == "arithmetic" and not row.unary and name != "bypass"]


def reduced_axes(call: Call, rank: int) -> list[int]:
    """The axes as sorted positive ints: the last dimensions without a gap, never the partition's."""
    given = call["axis"]
    axes = sorted(int(a) + rank * (int(a) < 0) for a in (given if isinstance(given, Sequence) else [given]))
    if 0 in axes:
        call.fail("cannot reduce the partition dimension (axis 0); use tensor_partition_reduce or a matmul with ones")
    if axes != list(range(rank - len(axes), rank)):
        call.fail(f"axis must be the last free dimensions without a gap, got {given} of {rank} dimensions")
    return axes


def _reduce_shapes(call: Call) -> None:
    data, dst = call.access("data"), call.access("dst")
    axes = reduced_axes(call, len(data.shape))
    call.attrs["axis"] = tuple(axes)
    left = math.prod(data.shape[1 : axes[0]])
    if dst.partitions != data.partitions or dst.free_size != left:
        call.fail(
            f"dst must have {data.partitions} partitions with {left} elements for data {data.shape} over axes {axes}, got {dst.shape}"
        )
    if call["negate"] and is_bits(call.attrs["op"]):
        call.fail("negate goes with arithmetic operators only")


@opcode(
    "vector",
    reads="data",
    limits=[
        on_chip("dst", "data"),
        no_packed("dst", "data"),
        op_in("op", REDUCIBLE, ". Unknown reduction operator"),
        bits_need_integers("dst", "data"),
        _reduce_shapes,
    ],
    indirect="dst data",
)
def tensor_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, axis: Any, negate: bool = False, keepdims: bool = False, name: str | None = None
) -> None:
    """Reduces the last free dimensions ``axis``; ``negate`` changes the sign of the result."""


@tensor_reduce.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst, data), op = i.accesses("dst", "data"), i.attrs["op"]
    count = len(i.attrs["axis"])
    kept = data.shape[: len(data.shape) - count]
    if is_bits(op):
        raw, put, dtype, target = bind.raw(data), bind.raw_store(dst, kept), data.dtype, dst.dtype
        return lambda: put(numerics.from_bits(reduce_dims(op, numerics.bits(raw(), dtype), count), target))
    load, store = bind.load(data), bind.store(dst, kept)
    if i.attrs["negate"]:
        return lambda: store(-reduce_dims(op, load(), count))
    return lambda: store(reduce_dims(op, load(), count))


def _loads_with_init(name: str) -> Any:
    def check(call: Call) -> None:
        if (call["reduce_cmd"] is reduce_cmd.load_reduce) != (call[name] is not None):
            call.fail(f"{name} is needed with, and only with, reduce_cmd load_reduce")

    return check


def _no_reverse(call: Call) -> None:
    if call["reverse0"]:
        call.fail("reverse0 is not supported")


@opcode(
    "vector",
    writes="dst reduce_res",
    reads="data operand0 reduce_init",
    numbers="operand0 reduce_init",
    accumulator="vector",
    limits=[
        on_chip("dst", "data", "operand0"),
        no_packed("dst", "data"),
        op_in("op0", [*BINARY, "bypass"]),
        alu_op("op0"),
        op_in("reduce_op", ["add", "multiply", "maximum", "minimum"]),
        enum_member("reduce_cmd", reduce_cmd),
        same_elements("dst", "data"),
        same_partitions("dst", "operand0", "reduce_res"),
        vector_operand("operand0", "reduce_res", "reduce_init"),
        float_operand("reduce_res"),
        _no_reverse,
        _loads_with_init("reduce_init"),
    ],
    indirect="dst data",
)
def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Vector | None,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_init: Vector | None = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> None:
    """``dst = data op0 operand0``, and its reduction over all free dimensions through the registers into ``reduce_res``."""


@tensor_scalar_reduce.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data = i.accesses("dst", "data")
    shape = bind.shape(dst, data)
    load, store, a = bind.load(data, shape), bind.store(dst, shape), bind.per_partition(i.operands["operand0"], len(shape))
    function = binary(i.attrs["op0"])
    registers = ReduceRegisters(
        bind,
        "vector",
        dst,
        i.attrs["reduce_cmd"],
        i.attrs["reduce_op"],
        i.operands["reduce_res"],
        i.operands["reduce_init"],
        i.attrs["reduce_res_negate"],
    )

    def step() -> None:
        value = function(load(), a())
        store(value)
        registers.update(value)

    return step


def _starts_somewhere(call: Call) -> None:
    if call["reduce_cmd"] is reduce_cmd.load_reduce and call["imm1"] is None:
        call.fail("reduce_cmd load_reduce needs imm1")


_NARROW = "bfloat16 float16 float32 float8_e4m3 float8_e4m3fn float8_e5m2 uint8 uint16 int8 int16".split()
_RUNNING = ["add", "subtract", "multiply", "maximum", "minimum"]
_START = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}


@opcode(
    "vector",
    reads="src imm0 imm1",
    numbers="imm0 imm1",
    accumulator="vector",
    limits=[
        on_chip("dst", "src"),
        dtype_in("dst", *_NARROW),
        dtype_in("src", *_NARROW),
        op_in("op0", [*BINARY, "bypass"]),
        op_in("op1", _RUNNING),
        same_elements("dst", "src"),
        vector_operand("imm0", "imm1"),
        enum_member("reduce_cmd", reduce_cmd),
        _starts_somewhere,
    ],
    indirect="dst src",
)
def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Vector,
    imm1: Vector | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    name: str | None = None,
) -> None:
    """Running ``reg = (src[i] op0 imm0) op1 reg``, written to ``dst[i]``; ``load_reduce`` starts at ``imm1``, ``reduce`` goes on."""


@tensor_scalar_cumulative.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, src = i.accesses("dst", "src")
    shape = (dst.partitions, dst.free_size)
    load, store = bind.load(src, shape), bind.store(dst, shape)
    first, op1, a = binary(i.attrs["op0"]), i.attrs["op1"], bind.per_partition(i.operands["imm0"], 2)
    command, initial = i.attrs["reduce_cmd"], bind.per_partition(i.operands["imm1"], 1)
    registers = bind.accumulator("vector", dst)

    def step() -> None:
        if command is not reduce_cmd.reduce:
            start = initial() if command is reduce_cmd.load_reduce else _START[op1]
            registers.copy_(start) if isinstance(start, torch.Tensor) else registers.fill_(start)
        value = first(load(), a())
        result = scan(value, None, registers, op1, "bypass", False, False)
        registers.copy_(result[:, -1])
        store(result)

    return step


def scan(
    data0: torch.Tensor, data1: torch.Tensor | None, initial: torch.Tensor, op0: str, op1: str, reverse0: bool, reverse1: bool
) -> torch.Tensor:
    """``r[i] = (data0[i] op0 r[i-1]) op1 data1[i]`` along dim 1, each row from left to right in float32."""
    from torch_neuronx import _C

    if {op0, op1} <= {"add", "subtract", "multiply", "maximum", "minimum", "bypass"}:
        out = torch.empty(data0.shape, dtype=torch.float32)
        other = data1.contiguous() if data1 is not None else out
        _C._nki_scan(out, data0.contiguous(), other, initial.contiguous(), op0, op1, reverse0, reverse1)
        return out
    first, second = binary(op0, reverse0), binary(op1, reverse1)
    columns, running = [], initial
    for k in range(data0.shape[1]):
        running = first(data0[:, k], running)
        if data1 is not None:
            running = second(running, data1[:, k])
        columns.append(running)
    return torch.stack(columns, 1)


@opcode(
    "vector",
    reads="data0 data1 initial",
    numbers="initial",
    limits=[
        on_chip("dst", "data0", "data1", "initial"),
        no_packed("dst", "data0", "data1"),
        op_in("op0", BINARY),
        op_in("op1", BINARY),
        alu_op("op0", "op1"),
        same_elements("dst", "data0", "data1"),
        same_partitions("dst", "initial"),
        vector_operand("initial"),
        not_both_psum("data0", "data1"),
    ],
)
def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Vector,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """``r[i] = (data0[i] op0 r[i-1]) op1 data1[i]`` along the free dimensions, from ``r[-1] = initial``, in float32."""


@tensor_tensor_scan.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data0, data1 = i.accesses("dst", "data0", "data1")
    shape = (dst.partitions, dst.free_size)
    a, b, store = bind.load(data0, shape), bind.load(data1, shape), bind.store(dst, shape)
    start = bind.per_partition(i.operands["initial"], 1)
    op0, op1, r0, r1 = (i.attrs[k] for k in ("op0", "op1", "reverse0", "reverse1"))

    def step() -> None:
        first = start()
        initial = first if isinstance(first, torch.Tensor) else torch.full((shape[0],), float(first), dtype=torch.float32)
        store(scan(a(), b(), initial, op0, op1, r0, r1))

    return step


# Statistics.


def _bn_stats_shape(call: Call) -> None:
    if call.access("dst").free_size != 6:
        call.fail(f"dst has 6 elements per partition, got {call.access('dst').shape}")


@opcode(
    "vector",
    reads="data",
    limits=[on_chip("dst", "data"), no_packed("data"), same_partitions("dst", "data"), max_free("data", 512), _bn_stats_shape],
)
def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """Count, mean and variance * count of the even elements, then of the odd ones: 6 values per partition."""


@bn_stats.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data = i.accesses("dst", "data")
    load, store = bind.load(data, (data.partitions, data.free_size)), bind.store(dst, (dst.partitions, 6))

    def step() -> None:
        x = load()
        parts = []
        for half in (x[:, 0::2], x[:, 1::2]):
            count = half.shape[1]
            mean = half.mean(1) if count else torch.zeros(len(x), dtype=torch.float32)
            parts += [torch.full_like(mean, count), mean, ((half - mean[:, None]) ** 2).sum(1)]
        store(torch.stack(parts, 1))

    return step


def _bn_aggr_shape(call: Call) -> None:
    if call.access("data").free_size % 3:
        call.fail(f"data holds (count, mean, variance * count) triples: elements per partition % 3 == 0, got {call.access('data').shape}")
    if call.access("dst").free_size != 2:
        call.fail(f"dst has 2 elements per partition, got {call.access('dst').shape}")


@opcode("vector", reads="data", limits=[on_chip("dst", "data"), same_partitions("dst", "data"), _bn_aggr_shape])
def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """Mean and variance of everything that triples of :func:`bn_stats` describe."""


@bn_aggr.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data = i.accesses("dst", "data")
    load, store = bind.load(data, (data.partitions, data.free_size // 3, 3)), bind.store(dst, (dst.partitions, 2))

    def step() -> None:
        count, mean, spread = load().unbind(2)
        total = count.sum(1)
        average = (count * mean).sum(1) / total
        variance = (spread + count * (mean - average[:, None]) ** 2).sum(1) / total
        store(torch.stack([average, variance], 1))

    return step


# Searches.


def _eight(name: str) -> Any:
    def check(call: Call) -> None:
        if call.access(name).free_size != 8:
            call.fail(f"{name} has 8 elements per partition, got {call.access(name).shape}")

    return check


def _rank3(name: str) -> Any:
    def check(call: Call) -> None:
        if len(call.access(name).free_pattern) > 2:
            call.fail(f"{name} has at most 3 dimensions, got {call.access(name).shape}")

    return check


_SEARCHED = max_free("data", 16384, 8)


@opcode(
    "vector",
    reads="src",
    limits=[
        on_chip("dst", "src"),
        no_packed("src"),
        same_partitions("dst", "src"),
        max_free("src", 16384, 8),
        _rank3("src"),
        _eight("dst"),
    ],
)
def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> None:
    """The 8 largest values of each partition, largest first."""


@max8.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, src = i.accesses("dst", "src")
    load, store = bind.load(src, (src.partitions, src.free_size)), bind.store(dst, (dst.partitions, 8))
    return lambda: store(load().topk(8, dim=1).values)


@opcode(
    "vector",
    reads="data vals",
    limits=[
        on_chip("dst", "data", "vals"),
        same_partitions("dst", "data", "vals"),
        _SEARCHED,
        _rank3("data"),
        _eight("vals"),
        _eight("dst"),
        dtype_in("dst", "uint16", "uint32"),
    ],
)
def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> None:
    """The first index of each of 8 values; a value that comes twice in ``vals`` takes the next occurrence; all ones where there is none."""


@nc_find_index8.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data, vals = i.accesses("dst", "data", "vals")
    load, values = bind.load(data, (data.partitions, data.free_size)), bind.load(vals, (vals.partitions, 8))
    put, dtype = bind.raw_store(dst, (dst.partitions, 8)), dst.dtype
    return lambda: put(numerics.from_bits(find8(load(), values(), range(8)), dtype))


def find8(data: torch.Tensor, vals: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """int64 positions of the values, taking each occurrence once, in ``order`` of the slots; -1 where a value is absent."""
    taken = torch.zeros(data.shape, dtype=torch.bool)
    found = torch.full((len(data), 8), -1, dtype=torch.int64)
    rows = torch.arange(len(data))
    for slot in order:
        match = (data == vals[:, slot : slot + 1]) & ~taken
        position = match.to(torch.uint8).argmax(1)
        hit = match[rows, position]
        found[:, slot] = torch.where(hit, position, -1)
        taken[rows[hit], position[hit]] = True
    return found


@opcode(
    "vector",
    writes="dst dst_idx",
    reads="data vals",
    limits=[
        on_chip("dst", "data", "vals", "dst_idx"),
        same_elements("dst", "data"),
        same_partitions("dst", "vals", "dst_idx"),
        _SEARCHED,
        _eight("vals"),
        dtype_in("dst_idx", "uint16", "uint32"),
    ],
)
def nc_match_replace8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: float, dst_idx: NkiTensor | None = None, name: str | None = None
) -> None:
    """Replaces the first match of each value by ``imm``, values 7 to 0; ``dst_idx`` receives where."""


@nc_match_replace8.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst, data, vals), where = i.accesses("dst", "data", "vals"), i.operands["dst_idx"]
    shape = (data.partitions, data.free_size)
    load, values, store = bind.load(data, shape), bind.load(vals, (vals.partitions, 8)), bind.store(dst, shape)
    imm = float(i.attrs["imm"])
    put = bind.raw_store(where, (where.partitions, 8)) if isinstance(where, AccessPattern) else None

    def step() -> None:
        x = load()
        found = find8(x, values(), range(7, -1, -1))
        result = torch.cat([x, torch.zeros(len(x), 1, dtype=torch.float32)], 1)  # absent values write to a column more
        result.scatter_(1, torch.where(found < 0, x.shape[1], found), imm)
        store(result[:, :-1])
        if put is not None and isinstance(where, AccessPattern):
            put(numerics.from_bits(found, where.dtype))

    return step
