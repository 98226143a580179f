"""What element-wise rows share: operators on float32, on integers and on bit patterns, and the reduce registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_neuronx.nki import numerics, ops
from torch_neuronx.nki.isa.constants import reduce_cmd
from torch_neuronx.nki.memory import AccessPattern
from torch_neuronx.nki.simulator import Binder, Load, Step, Store
from torch_neuronx.nki.tensor import NkiTensor

ENGINE_DTYPES = "float8_e4m3 float8_e4m3fn float8_e5m2 float16 bfloat16 float32 tfloat32 int8 int16 int32 uint8 uint16".split()
FP32_MIN = -3.4028234663852886e38
FloatTensor = torch.Tensor
Vector = NkiTensor | float | int  # an operand that may be one number for all partitions


def binary(op: str, reverse: bool = False) -> Callable[[Any, Any], torch.Tensor]:
    """The operator as a function of two float32 operands, one of which may be a number."""
    row = ops.ALU[op]
    if row.unary:
        return lambda a, b: row.function(a)
    if op == "bypass":
        return lambda a, b: a
    function = row.function
    if not reverse:
        return function
    return lambda a, b: function(_tensor(b, a), a)


def _tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=like.dtype)


def is_bits(op: str | None) -> bool:
    return op in ops.ALU and ops.ALU[op].kind == "bits"


def bit_operand(bind: Binder, value: Any, access: AccessPattern, rank: int) -> Callable[[], Any]:
    """A number, or a ``[P, 1]`` or full tile, as bit patterns of the width of ``access``."""
    width = 8 * access.itemsize
    if not isinstance(value, AccessPattern):
        constant = int(value or 0) & ((1 << width) - 1)
        return lambda: constant
    shape = (value.partitions, *(1,) * (rank - 1)) if value.free_size == 1 else None
    raw, dtype = bind.raw(value, shape), value.dtype
    return lambda: numerics.bits(raw(), dtype)


def bitwise(op: str, width: int) -> Callable[[Any, Any], torch.Tensor]:
    """An operator on int64 bit patterns of ``width`` bits; shifts by the width or more give 0."""
    function, mask = ops.ALU[op].function, (1 << width) - 1
    if op == "invert":
        return lambda a, b: function(a) & mask
    if op.endswith("shift"):

        def shift(a: torch.Tensor, b: Any) -> torch.Tensor:
            b = torch.as_tensor(b)
            return torch.where(b >= width, 0, function(a, b.clamp(max=width - 1)) & mask)

        return shift
    return lambda a, b: function(a, b)


def same_layout(*accesses: AccessPattern) -> bool:
    """All of one floating dtype that PyTorch rounds to: its kernel may work on the views themselves."""
    return len({a.dtype.name for a in accesses}) == 1 and accesses[0].dtype.name in numerics.DIRECT


def reduce_free(op: str, x: torch.Tensor) -> torch.Tensor:
    """Reduces all but dim 0 with a reducible operator; gives ``[P]``."""
    return reduce_dims(op, x.reshape(x.shape[0], -1), 1)


def reduce_dims(op: str, x: torch.Tensor, dims: int) -> torch.Tensor:
    """Reduces the last ``dims`` dimensions of float32 (or of int64 bit patterns)."""
    flat = x.reshape(*x.shape[: x.dim() - dims], -1)
    if op == "add":
        return flat.sum(-1)
    if op == "maximum":
        return flat.amax(-1)
    if op == "minimum":
        return flat.amin(-1)
    if op == "multiply":
        return flat.prod(-1)
    if op == "average":
        return flat.mean(-1)
    if op == "abs_max":
        return flat.abs().amax(-1)
    if op == "abs_min":
        return flat.abs().amin(-1)
    if op == "subtract":
        return flat[..., 0] - flat[..., 1:].sum(-1)
    if op in ("logical_and", "logical_or", "logical_xor"):
        truth = flat != 0
        chosen = truth.all(-1) if op == "logical_and" else truth.any(-1) if op == "logical_or" else truth.sum(-1) % 2 == 1
        return chosen.float()
    result = flat[..., 0]
    for k in range(1, flat.shape[-1]):  # bitwise
        result = ops.ALU[op].function(result, flat[..., k])
    return result


def combine(op: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a op b`` where reducing one more value is meant: subtract adds up what is subtracted."""
    return ops.ALU[op].function(a, b)


class ReduceRegisters:
    """An engine's registers in one instruction: ``update(values)`` once per run, then ``result`` is stored if asked for."""

    def __init__(
        self,
        bind: Binder,
        engine: str,
        lanes: AccessPattern,
        command: reduce_cmd,
        op: str,
        result: Any = None,
        initial: Any = None,
        negate: bool = False,
    ) -> None:
        self.registers = bind.accumulator(engine, lanes)
        self.command, self.op, self.negate = command, op, negate
        identity = ops.ALU[op].identity
        self.identity = 0.0 if identity is None else identity
        self.initial = bind.per_partition(initial, 1) if command is reduce_cmd.load_reduce else None
        self.store: Store | None = bind.store(result, (result.partitions, 1)) if isinstance(result, AccessPattern) else None

    def update(self, values: torch.Tensor) -> None:
        registers, command = self.registers, self.command
        if command is not reduce_cmd.idle:
            if command is not reduce_cmd.reduce:
                registers.fill_(self.identity)
            if self.initial is not None:
                initial = self.initial()
                registers.copy_(initial) if isinstance(initial, torch.Tensor) else registers.fill_(initial)
            if command is not reduce_cmd.reset:
                registers.copy_(combine(self.op, registers, reduce_free(self.op, values)))
        if self.store is not None:
            self.store((-registers if self.negate else registers).unsqueeze(1))


def unary_step(load: Load, function: Callable[[torch.Tensor], torch.Tensor], store: Store) -> Step:
    return lambda: store(function(load()))
