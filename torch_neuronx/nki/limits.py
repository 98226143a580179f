"""Rules that rows of the opcode table share. Each takes a :class:`Call` and refuses it with :meth:`Call.fail`."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from torch_neuronx.nki import ops
from torch_neuronx.nki.memory import AccessPattern, MemoryRegion
from torch_neuronx.nki.opcode import Call

Limit = Callable[[Call], None]
INTEGER_32 = ("int32", "uint32")


def _present(call: Call, names: tuple[str, ...]) -> list[tuple[str, AccessPattern]]:
    return [(name, call.operands[name]) for name in names if isinstance(call.operands.get(name), AccessPattern)]


def on_chip(*names: str) -> Limit:
    def check(call: Call) -> None:
        for name, access in _present(call, names):
            if not access.region.on_chip:
                call.fail(f"{name} must be in SBUF or PSUM, it is in {access.region}. Move it with nisa.dma_copy")

    return check


def in_region(region: MemoryRegion, *names: str) -> Limit:
    def check(call: Call) -> None:
        for name, access in _present(call, names):
            if access.region is not region:
                call.fail(f"{name} must be in {region.value.upper()}, it is in {access.region}")

    return check


def in_sbuf(*names: str) -> Limit:
    return in_region(MemoryRegion.sbuf, *names)


def same_partitions(*names: str) -> Limit:
    def check(call: Call) -> None:
        found = _present(call, names)
        for name, access in found[1:]:
            if access.partitions != found[0][1].partitions:
                call.fail(f"needs equal partition counts: {found[0][0]} has {found[0][1].partitions}, {name} has {access.partitions}")

    return check


def same_elements(*names: str) -> Limit:
    """Equal partitions, and equal elements per partition; ranks may differ."""

    def check(call: Call) -> None:
        found = _present(call, names)
        for name, access in found[1:]:
            first_name, first = found[0]
            if access.partitions != first.partitions:
                call.fail(f"needs equal partition counts: {first_name} has {first.partitions}, {name} has {access.partitions}")
            if access.free_size != first.free_size:
                call.fail(
                    f"needs equal elements per partition: {first_name} has {first.free_size} {first.shape}, "
                    f"{name} has {access.free_size} {access.shape}. Broadcast with a stride-0 view"
                )

    return check


def not_both_psum(a: str, b: str) -> Limit:
    def check(call: Call) -> None:
        found = _present(call, (a, b))
        if len(found) == 2 and all(access.region is MemoryRegion.psum for _, access in found):
            call.fail(f"{a} and {b} are both in PSUM; one of them must be in SBUF")

    return check


def vector_operand(*names: str) -> Limit:
    """A number, or one value per partition: ``[P, 1]``."""

    def check(call: Call) -> None:
        for name, access in _present(call, names):
            if access.free_size != 1:
                call.fail(f"{name} must be a number or a [P, 1] tile, got shape {access.shape}")

    return check


def float32_operand(*names: str) -> Limit:
    def check(call: Call) -> None:
        for name, access in _present(call, names):
            if access.dtype.name not in ("float32", "tfloat32"):
                call.fail(f"{name} must be float32, got {access.dtype}", ValueError)

    return check


def dtype_in(name: str, *allowed: str) -> Limit:
    def check(call: Call) -> None:
        for _, access in _present(call, (name,)):
            stored_as = "uint8" if access.dtype.kind == "bool" else access.dtype.name
            if stored_as not in allowed and access.dtype.name not in allowed:
                call.fail(f"{name} {access.dtype} not supported; it may be {', '.join(allowed)}", ValueError)

    return check


def same_dtype(*names: str) -> Limit:
    def check(call: Call) -> None:
        found = _present(call, names)
        for name, access in found[1:]:
            if access.dtype is not found[0][1].dtype:
                call.fail(f"needs equal dtypes: {found[0][0]} is {found[0][1].dtype}, {name} is {access.dtype}", ValueError)

    return check


def float_operand(*names: str) -> Limit:
    def check(call: Call) -> None:
        for name, access in _present(call, names):
            if not access.dtype.is_float:
                call.fail(f"{name} must be floating point, got {access.dtype}", ValueError)

    return check


def no_packed(*names: str) -> Limit:
    def check(call: Call) -> None:
        for name, access in _present(call, names):
            if access.dtype.kind == "packed":
                call.fail(f"{name} {access.dtype} not supported: packed types go to nc_matmul_mx, quantize_mx and copies only", ValueError)

    return check


def op_in(name: str, allowed: Any, what: str = "") -> Limit:
    def check(call: Call) -> None:
        op = call.attrs[name]
        if op is not None and op not in allowed:
            call.fail(f"{name}={op} not supported; it may be {', '.join(allowed)}{what}")

    return check


def alu_op(*names: str) -> Limit:
    """Operators that exist, and exist on the target."""

    def check(call: Call) -> None:
        for name in names:
            op = call.attrs.get(name)
            if op is None:
                continue
            if op not in ops.ALU:
                call.fail(f"{name}={op} is no operator of the Vector engine")
            if ops.ALU[op].since > call.target.generation:
                call.fail(f"{name}={op} needs trn3; this kernel is traced for {call.target.name}")

    return check


def bits_need_integers(*names: str, ops_of: tuple[str, ...] = ("op", "op0", "op1")) -> Limit:
    """Bitwise operators work on integer tiles only, and do not mix with arithmetic in one instruction."""

    def check(call: Call) -> None:
        kinds = {ops.ALU[call.attrs[o]].kind for o in ops_of if call.attrs.get(o) in ops.ALU and call.attrs.get(o) != "bypass"}
        if len(kinds) == 2:
            call.fail("cannot mix bitwise and arithmetic operators in one instruction")
        if kinds == {"bits"}:
            for name, access in _present(call, names):
                if not access.dtype.is_integer:
                    call.fail(f"bitwise operators need integer dtypes, {name} is {access.dtype}", ValueError)

    return check


def enum_member(name: str, kind: type[enum.Enum]) -> Limit:
    def check(call: Call) -> None:
        if name == "dge_mode" and type(call.attrs[name]) is int and call.attrs[name] in kind.__members__.values():
            call.attrs[name] = kind(call.attrs[name])  # public kernels give this one as a number
        if not isinstance(call.attrs[name], kind):
            call.fail(f"{name} must be a member of nki.isa.{kind.__name__}, got {call.attrs[name]!r}", TypeError)

    return check


def max_free(name: str, limit: int, least: int = 1) -> Limit:
    def check(call: Call) -> None:
        for _, access in _present(call, (name,)):
            if not least <= access.free_size <= limit:
                call.fail(f"{name} must have {least} to {limit} elements per partition, got {access.free_size}")

    return check
