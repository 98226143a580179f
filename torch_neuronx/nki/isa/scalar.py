"""Scalar engine: activation functions."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.nki import numerics
from torch_neuronx.nki.instruction import Instruction
from torch_neuronx.nki.isa.constants import reduce_cmd
from torch_neuronx.nki.isa.elementwise import ReduceRegisters, Vector, binary
from torch_neuronx.nki.limits import (
    enum_member,
    float32_operand,
    float_operand,
    no_packed,
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


def _activation_op(call: Call) -> None:
    op = call.attrs["op"]
    if op not in numerics.ACTIVATIONS:
        call.fail(f"op={op} is no activation function; there are {', '.join(numerics.ACTIVATIONS)}")
    bias = call["bias"]
    if call.target.generation < 3:
        if bias is not None and not isinstance(bias, AccessPattern) and bias != 0:
            call.fail("a scalar bias needs trn2; use a [P, 1] tile")
        if op == "reciprocal" and bias is not None:
            call.fail("op=reciprocal takes no bias on trn1")
    if isinstance(bias, AccessPattern) and bias.dtype.name == "tfloat32":
        call.fail("bias cannot be tfloat32", ValueError)


_SHARED = [
    on_chip("dst", "data", "bias", "scale"),
    no_packed("dst", "data", "bias"),
    _activation_op,
    same_elements("dst", "data"),
    same_partitions("dst", "bias", "scale", "reduce_res"),
    vector_operand("bias", "scale", "reduce_res"),
    float32_operand("scale"),
    float_operand("reduce_res"),
    op_in("reduce_op", ["add"]),
]


@opcode(
    "scalar",
    writes="dst reduce_res",
    reads="data bias scale",
    numbers="bias scale",
    accumulator="scalar",
    limits=[*_SHARED, enum_member("reduce_cmd", reduce_cmd)],
    indirect="dst data",
)
def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Vector | None = None,
    scale: Vector = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> None:
    """``dst = op(data * scale + bias)``; the sum over the free dimensions may go through the reduce registers into ``reduce_res``."""


@activation.semantics
def _(i: Instruction, bind: Binder) -> Step:
    return _activate(i, bind, i.attrs["reduce_cmd"] if i.attrs["reduce_op"] or i.operands["reduce_res"] else None)


@opcode(
    "scalar",
    writes="dst reduce_res",
    reads="data bias scale",
    numbers="bias scale",
    accumulator="scalar",
    limits=_SHARED,
    indirect="dst data",
)
def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    bias: Vector | None = None,
    scale: Vector = 1.0,
    name: str | None = None,
) -> None:
    """:func:`activation` with the sum over all free dimensions in ``reduce_res``."""


@activation_reduce.semantics
def _(i: Instruction, bind: Binder) -> Step:
    return _activate(i, bind, reduce_cmd.reset_reduce)


def _activate(i: Instruction, bind: Binder, command: reduce_cmd | None) -> Step:
    dst, data = i.accesses("dst", "data")
    shape = bind.shape(dst, data)
    function, load, store = numerics.ACTIVATIONS[i.attrs["op"]], bind.load(data, shape), bind.store(dst, shape)
    bias, scale = i.operands["bias"], i.operands["scale"]
    add, times = bind.per_partition(bias, len(shape)), bind.per_partition(scale, len(shape))
    plain = not isinstance(scale, AccessPattern) and scale == 1 and (bias is None or (not isinstance(bias, AccessPattern) and bias == 0))
    has_bias = bias is not None

    def value() -> torch.Tensor:
        if plain:
            return function(load())
        x = load() * times()
        return function(x + add() if has_bias else x)

    if command is None:
        return lambda: store(value())
    registers = ReduceRegisters(bind, "scalar", dst, command, "add", i.operands["reduce_res"])

    def step() -> None:
        x = value()
        store(x)
        registers.update(x)

    return step


_OP_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)


def _activate2_ops(call: Call) -> None:
    op, op0, op1 = call.attrs["op"], call.attrs["op0"] or "bypass", call.attrs["op1"] or "bypass"
    call.attrs["op0"], call.attrs["op1"] = op0, op1
    if op not in numerics.ACTIVATIONS and op not in ("prelu", "bypass"):
        call.fail(f"op={op} is no activation function; there are prelu, {', '.join(numerics.ACTIVATIONS)}")
    if (op0, op1) not in _OP_PAIRS:
        call.fail(f"op0, op1 = {op0}, {op1} not supported; pairs are {', '.join('/'.join(p) for p in _OP_PAIRS)}")
    for flag, name in (("reverse0", op0), ("reverse1", op1)):
        if call[flag] and name == "bypass":
            call.fail(f"{flag} needs its operator")
    imm = [call["imm0"], call["imm1"]]
    if all(isinstance(x, AccessPattern) for x in imm) and imm[0].dtype is not imm[1].dtype:
        call.fail(f"imm0 and imm1 need equal dtypes, got {imm[0].dtype} and {imm[1].dtype}", ValueError)


@opcode(
    "scalar",
    writes="dst reduce_res",
    reads="data imm0 imm1",
    numbers="imm0 imm1",
    since="trn3",
    accumulator="scalar",
    limits=[
        on_chip("dst", "data", "imm0", "imm1"),
        no_packed("dst", "data"),
        _activate2_ops,
        same_elements("dst", "data"),
        same_partitions("dst", "imm0", "imm1", "reduce_res"),
        vector_operand("imm0", "imm1", "reduce_res"),
        float_operand("reduce_res"),
        op_in("reduce_op", ["add", "maximum", "minimum", "abs_max", "abs_min"]),
        enum_member("reduce_cmd", reduce_cmd),
    ],
    indirect="dst data",
)
def activate2(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Vector | None = None,
    imm1: Vector | None = None,
    op0: Any = None,
    op1: Any = None,
    relu_param: float = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    name: str | None = None,
) -> None:
    """``dst = op((data op0 imm0) op1 imm1)`` (prelu's slope is ``relu_param``), with an optional reduction over the free dimensions."""


@activate2.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data = i.accesses("dst", "data")
    shape, op, slope = bind.shape(dst, data), i.attrs["op"], i.attrs["relu_param"]
    load, store = bind.load(data, shape), bind.store(dst, shape)
    first, second = binary(i.attrs["op0"], i.attrs["reverse0"]), binary(i.attrs["op1"], i.attrs["reverse1"])
    a, b = (bind.per_partition(i.operands[name], len(shape)) for name in ("imm0", "imm1"))
    functions = {**numerics.ACTIVATIONS, "prelu": lambda x: torch.where(x > 0, x, slope * x), "bypass": lambda x: x}
    function = functions[op]
    reduce_op = i.attrs["reduce_op"]
    registers = (
        ReduceRegisters(bind, "scalar", dst, i.attrs["reduce_cmd"], reduce_op or "add", i.operands["reduce_res"])
        if reduce_op or i.operands["reduce_res"]
        else None
    )

    def step() -> None:
        value = function(second(first(load(), a()), b()))
        store(value)
        if registers is not None:
            registers.update(value)

    return step
