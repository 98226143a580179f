"""From a Program of one call to a NEFF: what ``csrc/program/program_compiler.h`` asks for.

The operands of the compiled program are *storages*: each storage group of the call is one flat input of its leader's dtype, a written one
is an output too and must alias it, fresh storages are outputs. Scalars that travel with each launch (payload) are 0-dim inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# How a Scalar is passed, by its type: (example value, kind, bytes).
_PAYLOADS: dict[str, tuple[Any, str, int]] = {
    "int": (1, "raw", 8),
    "bool": (True, "bool", 1),
    "float": (1.0, "float32", 4),  # the chip has no float64
    "complex": (1j, "raw", 16),
}

Operand = tuple[str, str, int, int, int]  # name in the NEFF, kind, word, offset in bytes, bytes


@dataclass
class Storage:
    """A storage group of the call: its slots, leader first, and the bytes that they span."""

    leader: dict[str, Any]
    slots: list[int]
    bytes: int

    @property
    def dtype(self) -> torch.dtype:
        return self.leader["dtype"]

    @property
    def numel(self) -> int:
        return self.bytes // self.dtype.itemsize

    @property
    def offset(self) -> int:
        return int(self.leader["offset"]) * self.dtype.itemsize


def _span(slot: dict[str, Any]) -> int:
    """Bytes from the storage's start to the end of the slot's last element."""
    if 0 in slot["sizes"]:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(slot["sizes"], slot["strides"], strict=True))
    return (int(slot["offset"]) + last + 1) * slot["dtype"].itemsize


def storages_of(slots: list[dict[str, Any]]) -> dict[int, Storage]:
    """The storage groups by their leader's slot; those without memory are left out."""
    groups: dict[int, Storage] = {}
    for index, slot in enumerate(slots):
        if slot["host_scalar"] or slot["zero"]:
            continue
        leader = slot["leader"]
        group = groups.setdefault(leader, Storage(slots[leader], [], 0))
        group.slots.append(index)
        group.bytes = max(group.bytes, _span(slot))
    for group in groups.values():
        itemsize = group.dtype.itemsize
        group.bytes = (group.bytes + itemsize - 1) // itemsize * itemsize
    return {leader: group for leader, group in groups.items() if group.bytes}


def _lowering_program(call: dict[str, Any], storages: dict[int, Storage]) -> tuple[Any, list[Operand]]:
    """The call as torch_neuronx.lowering sees it, and the operands behind its parameters, in their order."""
    from torch_neuronx.lowering import program as lowering

    op = _overload(call["name"], call["overload"])
    program = lowering.Program()
    arguments: list[Any] = [_own_list(value) for value in call["arguments"]]
    operands: list[Operand] = []
    payload_operands: list[Operand] = []
    number = {leader: index for index, leader in enumerate(storages)}
    for group in storages.values():
        program.storages.append(group.dtype)
        operands.append(("", "storage", group.leader["word"], group.offset, group.bytes))

    tensors: dict[int, Any] = {}
    for index, slot in enumerate(call["slots"]):
        meta = lowering.TensorMeta(slot["dtype"], tuple(slot["sizes"]), tuple(slot["strides"]), slot["offset"], slot["conj"], slot["neg"])
        if slot["same_as"] >= 0:
            tensors[index] = tensors[slot["same_as"]]
        elif slot["host_scalar"] and slot["wrapped_number"]:
            example, kind, size = _PAYLOADS[_type_of(slot["dtype"])]
            tensors[index] = lowering.Payload(len(program.payloads), type(example))
            program.payloads.append(example)
            payload_operands.append(("", kind, slot["word"], 0, size))
        elif slot["host_scalar"]:
            program.storages.append(slot["dtype"])
            operands.append(("", "raw", slot["word"], 0, slot["dtype"].itemsize))
            program.inputs.append(lowering.Input(len(program.storages) - 1, lowering.TensorMeta(slot["dtype"], (), ())))
            tensors[index] = program.new_slot()
        elif slot["leader"] in number:
            program.inputs.append(lowering.Input(number[slot["leader"]], meta))
            tensors[index] = program.new_slot()
        else:
            # No memory: the lowering makes it (an empty tensor, or a ZeroTensor's zeros).
            tensors[index] = ("constant", meta)
    for index, value in list(tensors.items()):
        if isinstance(value, tuple):
            meta = value[1]
            slot = program.new_slot()
            program.constants[slot.index] = torch.empty_strided(meta.sizes, meta.strides, dtype=meta.dtype).zero_()
            tensors[index] = slot
        _place(arguments, call["slots"][index]["place"], tensors[index])
    for place, word, type_name in call["payloads"]:
        example, kind, size = _PAYLOADS[type_name]
        payload_operands.append(("", kind, word, 0, size))
        _place(arguments, place, lowering.Payload(len(program.payloads), type(example)))
        program.payloads.append(example)
    args, kwargs = _split(op, arguments)
    results = [program.new_slot() for _ in range(sum(len(returned) for returned in call["returns"]))]
    program.calls.append(lowering.Call(op, args, kwargs, list(results)))
    program.outputs = list(results)
    return program, operands + payload_operands


def _overload(name: str, overload: str) -> torch._ops.OpOverload:
    namespace, base = name.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def _own_list(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def _place(arguments: list[Any], place: tuple[int, int], value: Any) -> None:
    argument, element = place
    if element < 0:
        arguments[argument] = value
    else:
        arguments[argument][element] = value


def _type_of(dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return "bool"
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "int"


def _split(op: torch._ops.OpOverload, arguments: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in schema order as (args, kwargs)."""
    schema = op._schema.arguments
    args = tuple(value for argument, value in zip(schema, arguments, strict=True) if not argument.kwarg_only)
    return args, {argument.name: value for argument, value in zip(schema, arguments, strict=True) if argument.kwarg_only}


def _outputs(call: dict[str, Any], lowered: Any, storages: dict[int, Storage]) -> list[Operand]:
    """What the module's results are written to: input storages in place, then the call's fresh storages."""
    from torch_neuronx.lowering.emit import Output

    groups = list(storages.values())
    operands: dict[int, Operand] = {}
    for result, storage in enumerate(lowered.written):
        group = groups[storage]
        operands[result] = ("", "storage", group.leader["word"], group.offset, group.bytes)
    flat = [result for returned in call["returns"] for result in returned]
    for told, result in zip(lowered.outputs, flat, strict=True):
        if not isinstance(told, Output) or told.on_input or result["kind"] != "fresh":
            continue
        source = result["source"]
        operands[told.index] = ("", "storage", call["input_words"] + source, 0, call["fresh"][source])
    return [operands[index] for index in sorted(operands)]


def compile_program(call: dict[str, Any], generation: str, lnc: int) -> tuple[bytes, list[Operand], list[Operand]]:
    """The NEFF of one call, and what its inputs and outputs are.

    ``call``: as csrc/python/program_compiler.cpp describes it. ``generation``: "trn1", "trn2", "trn3". ``lnc``: physical cores behind a
    logical one.

    Raises NotImplementedError when the call has no lowering, with the reason.
    """
    from torch_neuronx.compiler.driver import compile_hlo
    from torch_neuronx.compiler.options import from_environment
    from torch_neuronx.lowering import NotLowered, lower

    storages = storages_of(call["slots"])
    program, operands = _lowering_program(call, storages)
    try:
        lowered = lower(program, generation)
    except NotLowered as error:
        raise NotImplementedError(f"it does not lower for {generation}: {error}") from error
    if lowered.specialised:
        raise NotImplementedError("its lowering looks at the value of a Scalar, which changes from call to call")
    if lowered.draws:
        raise NotImplementedError("it draws random numbers by an overload that does not pass its seed and offset")
    inputs = [(f"input{i}", *operand[1:]) for i, operand in enumerate(operands)]
    outputs = [(f"output{i}", *operand[1:]) for i, operand in enumerate(_outputs(call, lowered, storages))]
    compiled = compile_hlo(lowered.hlo(), from_environment(generation, lnc), name=f"{call['name']}.{call['overload']}".strip("."))
    return compiled.neff, inputs, outputs
