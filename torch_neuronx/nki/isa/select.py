"""Vector engine: selections, by a predicate or a range of indices."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.nki import numerics, ops
from torch_neuronx.nki.instruction import Instruction, Register
from torch_neuronx.nki.isa.constants import reduce_cmd
from torch_neuronx.nki.isa.elementwise import ENGINE_DTYPES, FP32_MIN, ReduceRegisters, Vector
from torch_neuronx.nki.limits import (
    dtype_in,
    enum_member,
    float32_operand,
    float_operand,
    not_both_psum,
    on_chip,
    op_in,
    same_dtype,
    same_elements,
    same_partitions,
    vector_operand,
)
from torch_neuronx.nki.memory import AccessPattern
from torch_neuronx.nki.opcode import Call, opcode
from torch_neuronx.nki.simulator import Binder, Step
from torch_neuronx.nki.tensor import NkiTensor


def _predicate_shapes(call: Call) -> None:
    dst, predicate = call.access("dst"), call.access("predicate")
    if dst.partitions != predicate.partitions or dst.free_size != predicate.free_size:
        call.fail(f"needs as many predicate elements as dst has: {predicate.shape} for {dst.shape}")
    src = call["src"]
    if isinstance(src, AccessPattern) and src.free_size not in (1, dst.free_size):
        call.fail(f"src must be a number or have the elements of dst: {src.shape} for {dst.shape}")


@opcode(
    "vector",
    reads="src predicate",
    numbers="src",
    read_write="",
    limits=[
        on_chip("dst", "src", "predicate"),
        dtype_in("predicate", "uint8", "uint16", "uint32"),
        same_dtype("dst", "src"),
        _predicate_shapes,
        not_both_psum("src", "predicate"),
    ],
    indirect="dst predicate",
)
def tensor_copy_predicated(dst: NkiTensor, src: Vector, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None) -> None:
    """Copies ``src`` (tile or number) where ``predicate`` is not 0; other elements of ``dst`` keep their value."""


@tensor_copy_predicated.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, predicate = i.accesses("dst", "predicate")
    src, flip = i.operands["src"], i.attrs["reverse_pred"]
    same = isinstance(src, AccessPattern) and src.free_size == dst.free_size
    shape = bind.shape(dst, predicate, src) if isinstance(src, AccessPattern) and same else bind.shape(dst, predicate)
    old, mask, put = bind.raw(dst, shape), bind.raw(predicate, shape), bind.raw_store(dst, shape)
    if isinstance(src, AccessPattern):
        new = bind.raw(src, shape if same else (src.partitions, *(1,) * (len(shape) - 1)))
    else:
        assert not isinstance(src, Register)
        constant = numerics.from_float(torch.tensor(float(src or 0), dtype=torch.float32), dst.dtype)
        new = lambda: constant  # noqa: E731
    return lambda: put(torch.where((mask() != 0) ^ flip, new(), old()))


@opcode(
    "vector",
    writes="dst reduce_res",
    reads="predicate on_true on_false",
    numbers="on_false",
    accumulator="vector",
    limits=[
        on_chip("dst", "predicate", "on_true"),
        dtype_in("predicate", "int8", "uint8", "int16", "uint16"),
        dtype_in("on_true", *(n for n in ENGINE_DTYPES if n not in ("tfloat32", "int32"))),
        same_elements("dst", "predicate", "on_true"),
        vector_operand("on_false", "reduce_res"),
        float32_operand("on_false"),
        float_operand("reduce_res"),
        op_in("reduce_op", ["maximum"]),
        enum_member("reduce_cmd", reduce_cmd),
        not_both_psum("on_true", "predicate"),
    ],
)
def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Vector,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_op: Any = torch.maximum,
    reverse_pred: bool = False,
    name: str | None = None,
) -> None:
    """``dst = where(predicate, on_true, on_false)``; the maximum over the free dimensions may go into ``reduce_res``."""


@select_reduce.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, predicate, on_true = i.accesses("dst", "predicate", "on_true")
    shape = bind.shape(dst, predicate, on_true)
    mask, yes, store = bind.raw(predicate, shape), bind.load(on_true, shape), bind.store(dst, shape)
    no, flip = bind.per_partition(i.operands["on_false"], len(shape)), i.attrs["reverse_pred"]
    registers = ReduceRegisters(bind, "vector", dst, i.attrs["reduce_cmd"], "maximum", i.operands["reduce_res"])

    def step() -> None:
        value = torch.where((mask() != 0) ^ flip, yes(), no())
        store(value)
        registers.update(value)

    return step


def _range_fill(call: Call) -> None:
    fill = call["on_false_value"]
    if abs(float(fill) - FP32_MIN) > 1e31:
        call.fail(f"on_false_value must be -3.4028235e38 (the smallest float32), got {fill}")
    if not isinstance(call["range_start"], int):
        call.fail(f"range_start must be a compile-time int, got {call['range_start']!r}", TypeError)
    last = call["range_start"] + call.access("on_true_tile").free_size
    if last > 1 << 24:
        call.fail(f"compares indices in float32: they must stay below 2^24, got {last}")


_COMPARE = ("equal", "less", "less_equal", "greater", "greater_equal")


@opcode(
    "vector",
    writes="dst reduce_res",
    reads="on_true_tile bound0 bound1",
    since="trn2",
    accumulator="vector",
    limits=[
        on_chip("dst", "on_true_tile", "bound0", "bound1"),
        float_operand("dst", "on_true_tile", "reduce_res"),
        op_in("comp_op0", _COMPARE),
        op_in("comp_op1", _COMPARE),
        op_in("reduce_op", ["maximum"]),
        same_elements("dst", "on_true_tile"),
        same_partitions("dst", "bound0", "bound1", "reduce_res"),
        vector_operand("bound0", "bound1", "reduce_res"),
        float32_operand("bound0", "bound1"),
        enum_member("reduce_cmd", reduce_cmd),
        _range_fill,
    ],
)
def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = torch.maximum,
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    name: str | None = None,
) -> None:
    """Keeps the elements whose free index (from ``range_start``) passes both comparisons, else the smallest float32; maximum into
    ``reduce_res``."""


@range_select.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, tile, low, high = i.accesses("dst", "on_true_tile", "bound0", "bound1")
    shape = (dst.partitions, dst.free_size)
    load, store = bind.load(tile, shape), bind.store(dst, shape)
    a, b = bind.load(low, (low.partitions, 1)), bind.load(high, (high.partitions, 1))
    first, second = ops.ALU[i.attrs["comp_op0"]].function, ops.ALU[i.attrs["comp_op1"]].function
    index = (torch.arange(shape[1]) + i.attrs["range_start"]).float()
    registers = ReduceRegisters(bind, "vector", dst, i.attrs["reduce_cmd"], "maximum", i.operands["reduce_res"])

    def step() -> None:
        keep = (first(index, a()) != 0) & (second(index, b()) != 0)
        value = torch.where(keep, load(), FP32_MIN)
        store(value)
        registers.update(value)

    return step
