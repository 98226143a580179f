"""Vector engine: element-wise arithmetic and copies. Selections are in `select.py`, reductions and searches in `reduction.py`."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.nki import numerics, ops
from torch_neuronx.nki.instruction import Engine, Instruction
from torch_neuronx.nki.isa.constants import engine, reduce_cmd
from torch_neuronx.nki.isa.elementwise import ENGINE_DTYPES, ReduceRegisters, Vector, binary, bit_operand, bitwise, is_bits, same_layout
from torch_neuronx.nki.limits import (
    INTEGER_32,
    alu_op,
    bits_need_integers,
    dtype_in,
    enum_member,
    float32_operand,
    float_operand,
    no_packed,
    not_both_psum,
    on_chip,
    op_in,
    same_dtype,
    same_elements,
    same_partitions,
    vector_operand,
)
from torch_neuronx.nki.memory import AccessPattern, MemoryRegion
from torch_neuronx.nki.opcode import Call, opcode
from torch_neuronx.nki.simulator import Binder, Step
from torch_neuronx.nki.tensor import NkiTensor

Number = float | int


def _any_psum(call: Call) -> bool:
    return any(isinstance(a, AccessPattern) and a.region is MemoryRegion.psum for a in call.operands.values())


# Copies.


def _copy_engine(call: Call) -> Engine:
    return Engine.vector


def _indirect_engine(call: Call) -> None:
    dynamic = [call.access(name).dynamic for name in ("dst", "src")]
    if call.engine is Engine.gpsimd and any(d is not None and d.kind == "indirect" for d in dynamic):
        call.fail("of .indirect() views runs on the vector and scalar engines")


@opcode(
    "vector scalar gpsimd",
    reads="src",
    limits=[on_chip("dst", "src"), same_elements("dst", "src"), _indirect_engine],
    choose=_copy_engine,
    generations={"scalar": "trn2"},
    indirect="dst src",
)
def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Engine = engine.unknown, name: str | None = None) -> None:
    """``dst = src`` on chip: bit by bit for equal dtypes, otherwise through float32."""


@tensor_copy.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, src = i.accesses("dst", "src")
    shape = bind.shape(dst, src)
    if dst.dtype is src.dtype:
        source, put = bind.raw(src, shape), bind.raw_store(dst, shape)
        return lambda: put(source())
    if src.dtype.name in numerics.DIRECT:
        target = bind.direct(dst, shape, src)
        if target is not None:
            source = bind.raw(src, shape)
            return lambda: target.copy_(source())
    load, store = bind.load(src, shape), bind.store(dst, shape)
    return lambda: store(load())


def _memset_value(call: Call) -> None:
    dst, value = call.access("dst"), call["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if not isinstance(value, bool):
            call.fail(f"value must be a compile-time number, got {type(value).__name__}", TypeError)
        call.attrs["value"] = value = int(value)
    if dst.dtype.kind == "packed" and value != 0:
        call.fail(f"of {dst.dtype} sets 0 only, got {value}")
    if dst.dtype.is_integer and isinstance(value, float) and not value.is_integer():
        call.fail(f"value {value} is no integer, dst is {dst.dtype}", ValueError)


@opcode("vector gpsimd", limits=[on_chip("dst"), _memset_value])
def memset(dst: NkiTensor, value: Number, engine: Engine = engine.unknown, name: str | None = None) -> None:
    """Fills ``dst`` with a compile-time number."""


@memset.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst,) = i.accesses("dst")
    value, shape = i.attrs["value"], dst.shape
    if dst.dtype.is_integer:
        stored = numerics.from_bits(torch.tensor(int(value)), dst.dtype)
    elif dst.dtype.kind == "packed":
        stored = torch.zeros((), dtype=dst.dtype.storage)
    else:
        stored = numerics.from_float(torch.tensor(float(value), dtype=torch.float32), dst.dtype)
    if not dst.is_dynamic:
        view = bind.view(dst)
        if dst.dtype.storage.itemsize > 1:
            number = stored.item()
            return lambda: view.fill_(number)
        return lambda: view.copy_(stored)
    put = bind.raw_store(dst)
    return lambda: put(stored.expand(shape))


def _shuffle_mask(call: Call) -> None:
    mask = [int(m) for m in call["shuffle_mask"]]
    call.attrs["shuffle_mask"] = mask
    if len(mask) != 32 or any(not (0 <= m < 32 or m == 255) for m in mask):
        call.fail(f"shuffle_mask has 32 entries of 0 to 31, or 255 to keep the destination, got {mask}")


def _shuffle_sizes(call: Call) -> None:
    dst, src = call.access("dst"), call.access("src")
    if dst.free_size != src.free_size:
        call.fail(f"needs equal elements per partition: dst has {dst.free_size}, src has {src.free_size}")
    if 255 in call["shuffle_mask"]:
        call.extra_reads.append(dst)  # some of its partitions stay


@opcode(
    "vector",
    reads="src",
    limits=[on_chip("dst", "src"), same_dtype("dst", "src"), _shuffle_mask, _shuffle_sizes],
)
def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None) -> None:
    """In each quadrant of 32 partitions, ``dst[i]`` takes partition ``shuffle_mask[i]`` of ``src``; 255 keeps ``dst[i]``."""


@nc_stream_shuffle.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, src = i.accesses("dst", "src")
    p, mask = dst.partitions, i.attrs["shuffle_mask"]
    pairs = [(q + k, q + m) for q in range(0, p, 32) for k, m in enumerate(mask) if m != 255 and q + k < p]
    outside = [b for _, b in pairs if b >= src.partitions]
    to = torch.tensor([a for a, b in pairs if b < src.partitions], dtype=torch.long)
    source = torch.tensor([b for _, b in pairs if b < src.partitions], dtype=torch.long)
    shape = (p, dst.free_size)
    old, new, put = bind.raw(dst, shape), bind.raw(src, (src.partitions, src.free_size)), bind.raw_store(dst, shape)
    del outside  # partitions of the quadrant without data: what lies there is not defined, the destination stays

    def step() -> None:
        result = old().clone(memory_format=torch.contiguous_format)  # also of a column, to be seen as bytes
        moved = new().clone(memory_format=torch.contiguous_format)
        result.view(torch.uint8)[to] = moved.view(torch.uint8)[source]
        put(result)

    return step


# Arithmetic.


def _tensor_tensor_engine(call: Call) -> Engine:
    names = {call.access(name).dtype.name for name in ("dst", "data1", "data2")}
    if call.attrs["op"] == "power":
        return Engine.gpsimd
    if len(names) == 1 and names <= set(INTEGER_32) and not is_bits(call.attrs["op"]) and not _any_psum(call):
        return Engine.gpsimd
    return Engine.vector


def _tensor_tensor_op(call: Call) -> None:
    op = call.attrs["op"]
    if op not in ops.ALU or ops.ALU[op].unary or op == "bypass":
        call.fail(f"op={op} not supported; it needs a binary operator")
    if op == "power" and call.engine is not Engine.gpsimd:
        call.fail("op=power runs on the gpsimd engine only")


@opcode(
    "vector gpsimd",
    reads="data1 data2",
    limits=[
        on_chip("dst", "data1", "data2"),
        no_packed("dst", "data1", "data2"),
        _tensor_tensor_op,
        alu_op("op"),
        same_elements("dst", "data1", "data2"),
        not_both_psum("data1", "data2"),
        bits_need_integers("dst", "data1", "data2"),
    ],
    choose=_tensor_tensor_engine,
    indirect="dst data1",
)
def tensor_tensor(
    dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Engine = engine.unknown, name: str | None = None
) -> None:
    """``dst = data1 op data2``, element by element; int32 and uint32 tiles are exact on GpSimd, float32 otherwise."""


@tensor_tensor.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data1, data2 = i.accesses("dst", "data1", "data2")
    op, shape = i.attrs["op"], bind.shape(dst, data1, data2)
    if is_bits(op):
        return _bits_step(bind, dst, shape, op, data1, data2)
    if i.engine is Engine.gpsimd and {a.dtype.name for a in (dst, data1, data2)} <= set(INTEGER_32):
        return _integer_step(bind, dst, data1, data2, op, shape)
    function = ops.ALU[op].function
    if ops.ALU[op].exact and same_layout(dst, data1, data2) and not data1.is_dynamic and not data2.is_dynamic:
        target = bind.direct(dst, shape, data1, data2)
        a, b = bind._try_view(data1, shape), bind._try_view(data2, shape)
        if target is not None and a is not None and b is not None:
            return lambda: function(a, b, out=target)
    first, second, store = bind.load(data1, shape), bind.load(data2, shape), bind.store(dst, shape)
    return lambda: store(function(first(), second()))


def _bits_step(bind: Binder, dst: AccessPattern, shape: tuple[int, ...], op: str, a: AccessPattern, b: AccessPattern) -> Step:
    function, dtype = bitwise(op, 8 * a.itemsize), dst.dtype
    first, second, put = bind.raw(a, shape), bind.raw(b, shape), bind.raw_store(dst, shape)
    one, two = a.dtype, b.dtype
    return lambda: put(numerics.from_bits(function(numerics.bits(first(), one), numerics.bits(second(), two)), dtype))


def _integer_step(bind: Binder, dst: AccessPattern, a: AccessPattern, b: AccessPattern, op: str, shape: tuple[int, ...]) -> Step:
    first, second, put = bind.raw(a, shape), bind.raw(b, shape), bind.raw_store(dst, shape)
    one, two, dtype, function = a.dtype, b.dtype, dst.dtype, ops.ALU[op].function
    return lambda: put(
        numerics.from_bits(function(numerics.as_integers(first(), one), numerics.as_integers(second(), two)).to(torch.int64), dtype)
    )


def _tensor_scalar_engine(call: Call) -> Engine:
    return Engine.gpsimd if call.attrs["op0"] == "rsqrt" and not _any_psum(call) else Engine.vector


def _tensor_scalar_ops(call: Call) -> None:
    op0, op1 = call.attrs["op0"], call.attrs["op1"]
    if op0 is None:
        call.fail("needs op0")
    if ops.ALU[op0].unary and not (call["operand0"] is None or call["operand0"] == 0):
        call.fail(f"op0={op0} takes no operand: operand0 must be None or 0, got {call['operand0']}")
    if not ops.ALU[op0].unary and call["operand0"] is None:
        call.fail(f"op0={op0} needs operand0")
    if op1 is None and call["operand1"] is not None:
        call.fail("operand1 needs op1")
    if op1 is not None and call["operand1"] is None and not ops.ALU[op1].unary:
        call.fail(f"op1={op1} needs operand1")
    if call.engine is Engine.scalar and (op0, op1) not in (("multiply", "add"), ("multiply", None), ("add", None)):
        call.fail(f"on the scalar engine does multiply, add, or multiply then add, not {op0}, {op1}")
    if is_bits(op0) and call.engine is not Engine.vector:
        call.fail("bitwise operators run on the vector engine only")
    if not is_bits(op0):
        float32_operand("operand0", "operand1")(call) if not _integers_only(call) else None


def _integers_only(call: Call) -> bool:
    return all(a.dtype.is_integer for a in call.operands.values() if isinstance(a, AccessPattern))


@opcode(
    "vector scalar gpsimd",
    reads="data operand0 operand1",
    numbers="operand0 operand1",
    limits=[
        on_chip("dst", "data", "operand0", "operand1"),
        no_packed("dst", "data"),
        alu_op("op0", "op1"),
        bits_need_integers("dst", "data"),
        _tensor_scalar_ops,
        same_elements("dst", "data"),
        same_partitions("dst", "operand0", "operand1"),
        vector_operand("operand0", "operand1"),
    ],
    choose=_tensor_scalar_engine,
    generations={"scalar": "trn2"},
    indirect="dst data",
)
def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Vector | None,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Vector | None = None,
    reverse1: bool = False,
    engine: Engine = engine.unknown,
    name: str | None = None,
) -> None:
    """``dst = (data op0 operand0) op1 operand1`` with numbers or ``[P, 1]`` tiles; the reverse flags swap an operator's operands."""


@tensor_scalar.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data = i.accesses("dst", "data")
    shape = bind.shape(dst, data)
    op0, op1 = i.attrs["op0"], i.attrs["op1"]
    if is_bits(op0):
        return _bits_with_scalars(i, bind, dst, data, shape)
    first = binary(op0, i.attrs["reverse0"])
    a, load = bind.per_partition(i.operands["operand0"], len(shape)), bind.load(data, shape)
    simple = op1 is None and not i.attrs["reverse0"] and ops.ALU[op0].exact and same_layout(dst, data)
    if simple and (dst.dtype.name == "float32" or not isinstance(i.operands["operand0"], AccessPattern)):
        target, source = bind.direct(dst, shape, data), bind._try_view(data, shape)
        if target is not None and source is not None and not data.is_dynamic:
            function = ops.ALU[op0].function
            return lambda: function(source, a(), out=target)
    store = bind.store(dst, shape)
    if op1 is None:
        return lambda: store(first(load(), a()))
    second, b = binary(op1, i.attrs["reverse1"]), bind.per_partition(i.operands["operand1"], len(shape))
    return lambda: store(second(first(load(), a()), b()))


def _bits_with_scalars(i: Instruction, bind: Binder, dst: AccessPattern, data: AccessPattern, shape: tuple[int, ...]) -> Step:
    width, rank, dtype, target = 8 * data.itemsize, len(shape), data.dtype, dst.dtype
    steps = []
    for k in ("0", "1"):
        if i.attrs[f"op{k}"] is not None:
            function = bitwise(i.attrs[f"op{k}"], width)
            operand = bit_operand(bind, i.operands[f"operand{k}"], data, rank)
            steps.append((function, operand, i.attrs[f"reverse{k}"]))
    raw, put = bind.raw(data, shape), bind.raw_store(dst, shape)

    def step() -> None:
        value = numerics.bits(raw(), dtype)
        for function, operand, reverse in steps:
            other = operand()
            value = function(torch.as_tensor(other), value) if reverse else function(value, other)
        put(numerics.from_bits(value, target))

    return step


@opcode(
    "vector",
    reads="data operand0 operand1",
    numbers="operand0",
    limits=[
        on_chip("dst", "data", "operand0", "operand1"),
        no_packed("dst", "data", "operand1"),
        op_in("op0", [name for name, row in ops.ALU.items() if row.kind == "arithmetic" and not row.unary]),
        op_in("op1", [name for name, row in ops.ALU.items() if row.kind == "arithmetic" and not row.unary]),
        alu_op("op0", "op1"),
        same_elements("dst", "data", "operand1"),
        same_partitions("dst", "operand0"),
        vector_operand("operand0"),
        not_both_psum("data", "operand1"),
    ],
)
def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Vector,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """``dst = (data op0 operand0) op1 operand1``: a number or ``[P, 1]`` tile, then a tile of the shape of ``data``."""


@scalar_tensor_tensor.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data, other = i.accesses("dst", "data", "operand1")
    shape = bind.shape(dst, data, other)
    first, second = binary(i.attrs["op0"], i.attrs["reverse0"]), binary(i.attrs["op1"], i.attrs["reverse1"])
    load, a, b = bind.load(data, shape), bind.per_partition(i.operands["operand0"], len(shape)), bind.load(other, shape)
    store = bind.store(dst, shape)
    return lambda: store(second(first(load(), a()), b()))


@opcode("vector", reads="data", limits=[on_chip("dst", "data"), no_packed("dst", "data"), same_elements("dst", "data")])
def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """``dst = 1 / data``."""


@reciprocal.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data = i.accesses("dst", "data")
    shape = bind.shape(dst, data)
    load, store = bind.load(data, shape), bind.store(dst, shape)
    return lambda: store(torch.reciprocal(load()))


def _reduce_init(call: Call) -> None:
    loads = call["reduce_cmd"] is reduce_cmd.load_reduce
    given = call["reduce_init"]
    if loads and given is None:
        call.fail("reduce_cmd load_reduce needs reduce_init")
    if not loads and isinstance(given, AccessPattern):
        call.fail("reduce_init goes with reduce_cmd load_reduce only")


@opcode(
    "vector",
    writes="dst reduce_res",
    reads="src max_value reduce_init",
    numbers="max_value reduce_init",
    since="trn3",
    accumulator="vector",
    limits=[
        on_chip("dst", "src"),
        dtype_in("dst", *ENGINE_DTYPES),
        dtype_in("src", *ENGINE_DTYPES, "uint32"),
        same_elements("dst", "src"),
        vector_operand("max_value", "reduce_res", "reduce_init"),
        float32_operand("max_value"),
        float_operand("reduce_res"),
        enum_member("reduce_cmd", reduce_cmd),
        _reduce_init,
    ],
    indirect="dst src",
)
def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Vector = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_init: Vector = 0.0,
    name: str | None = None,
) -> None:
    """``dst = exp(src - max_value)``; the sum over the free dimensions may go through the reduce registers into ``reduce_res``."""


@exponential.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, src = i.accesses("dst", "src")
    shape = bind.shape(dst, src)
    load, store, peak = bind.load(src, shape), bind.store(dst, shape), bind.per_partition(i.operands["max_value"], len(shape))
    registers = ReduceRegisters(bind, "vector", dst, i.attrs["reduce_cmd"], "add", i.operands["reduce_res"], i.operands["reduce_init"])

    def step() -> None:
        value = torch.exp(load() - peak())
        store(value)
        registers.update(value)

    return step
