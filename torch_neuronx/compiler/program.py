"""From a Program to HLO to a NEFF: the Python side of ``csrc/program/program_compiler.h``.

Note [Described Programs]
``csrc/python/program_compiler.cpp`` describes a Program, of one eager call or of a whole graph, as::

    {"name": str,
     "storages": [(word, bytes)],   # word of the launch with its address, -1: it lives and dies inside; bytes -1: an input
     "calls": [{"name", "overload", "arguments",
                "slots":    [{dtype, sizes, strides, conj, neg, wrapped_number, storage, byte_offset, place, source}],
                "payloads": [(place, type, source)],
                "returns":  [None, or {dtype, sizes, strides, conj, neg, storage, byte_offset} of a fresh tensor]}]}

A fresh tensor lies on a fresh storage, or, in a window of Adaptive Eager, in memory that is an input: what the window's calls have made
and somebody still holds was allocated before it runs.

``byte_offset`` counts from the place that the storage's word points to, so it may be negative. ``source`` says where a number comes from:
``("word", index, what to add)`` or ``("constant", low word, high word)``; None for tensors of the device.

The parameters of the module are the input storages, from the first to the last byte that the calls touch, then the numbers that come with
each launch. Its results are the input storages that are written, each the same memory as its parameter, then the fresh storages that
outlive the launch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import torch

from torch_neuronx.lowering import NotLowered, lower
from torch_neuronx.lowering import program as lowering
from torch_neuronx.lowering.dtypes import absent_from_chip
from torch_neuronx.lowering.emit import Output
from torch_neuronx.lowering.tracer import Traced

# How a number is passed, by its type: (example value, bytes, how it lies in the two words of a launch). The chip has no float64.
_PAYLOADS: dict[str, tuple[Any, int, str]] = {
    "int": (1, 8, "<q8x"),
    "bool": (True, 1, "<?15x"),
    "float": (1.0, 4, "<d8x"),
    "complex": (1j, 16, "<dd"),
}
_NUMBERS = {torch.int64: "int", torch.bool: "bool", torch.float64: "float", torch.complex128: "complex"}

Operand = tuple[str, str, int, int, int, int]  # name in the NEFF, kind, word, bytes before the word's place, number to add, bytes
View = tuple[int, lowering.TensorMeta]  # storage, and the tensor with its offset in its own elements


def _place(arguments: list[Any], place: tuple[int, int], value: Any) -> None:
    argument, element = place
    if element < 0:
        arguments[argument] = value
    else:
        arguments[argument][element] = value


def _span(slot: dict[str, Any]) -> int:
    """Bytes from the first element's begin to the last one's end."""
    if 0 in slot["sizes"]:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(slot["sizes"], slot["strides"], strict=True))
    return int((last + 1) * slot["dtype"].itemsize)


class _StorageView:
    """Another tensor on the storage of a traced one: a call of the Program that is no operator."""

    def __init__(self, meta: lowering.TensorMeta) -> None:
        self.meta = meta

    def __call__(self, x: Traced) -> Traced:
        m = self.meta
        shown = torch.empty(0, dtype=m.dtype, device="meta").set_(x.meta.untyped_storage(), m.offset, m.sizes, m.strides)
        shown = torch._conj(shown) if m.conj else shown
        shown = torch._neg_view(shown) if m.neg else shown
        made = Traced(shown, x.base, None)
        made.version = -1
        return made


class _Builder:
    """Writes a described Program as the lowering's Program."""

    def __init__(self, described: dict[str, Any]) -> None:
        self.described = described
        self.program = lowering.Program(draws=False)
        self.storage_operands: list[Operand] = []
        self.payload_operands: list[Operand] = []
        self.begins: dict[int, int] = {}  # of input storages: the first byte that is touched
        self.numbers: dict[int, int] = {}  # storage -> number of the parameter
        self.makers: dict[int, lowering.Slot] = {}  # fresh storage -> the tensor that was made with it
        self.views: dict[View, lowering.Slot] = {}
        self.scalars: dict[Any, lowering.Slot] = {}
        self.payloads: dict[Any, lowering.Payload] = {}

    def build(self) -> lowering.Program:
        self._inputs()
        for call in self.described["calls"]:
            self._call(call)
        self.escaping = [(storage, word) for storage, (word, size) in enumerate(self.described["storages"]) if size > 0 and word >= 0]
        self.program.outputs = [self._maker(storage) for storage, _ in self.escaping]
        return self.program

    def operands(self) -> list[Operand]:
        return self.storage_operands + self.payload_operands

    # ---- inputs: before the calls, so that slot i is input i ----

    def _inputs(self) -> None:
        on_inputs: dict[int, list[dict[str, Any]]] = {}
        host: list[dict[str, Any]] = []
        for call in self.described["calls"]:
            for slot in call["slots"]:
                if slot["source"] is not None:
                    host.append(slot)
                elif self._lies_on_input(slot):
                    on_inputs.setdefault(slot["storage"], []).append(slot)
            for returned in call["returns"]:
                if returned is not None and self._lies_on_input(returned):
                    on_inputs.setdefault(returned["storage"], []).append(returned)
        for storage, slots in on_inputs.items():
            self._input_storage(storage, slots)
        for slot in host:
            if self._number_type(slot) is None and slot["source"][0] == "word" and self._scalar_key(slot) not in self.scalars:
                dtype, (_, word, _) = slot["dtype"], slot["source"]
                self.program.storages.append(dtype)
                self.storage_operands.append(("", "raw", word, 0, 0, dtype.itemsize))
                self.program.inputs.append(lowering.Input(len(self.program.storages) - 1, lowering.TensorMeta(dtype, (), ())))
                self.scalars[self._scalar_key(slot)] = self.program.new_slot()

    def _input_storage(self, storage: int, slots: list[dict[str, Any]]) -> None:
        widest = max(slot["dtype"].itemsize for slot in slots)
        begin = min(slot["byte_offset"] for slot in slots)
        begin -= begin % widest
        number = self.numbers[storage] = len(self.program.storages)
        self.begins[storage] = begin
        # The storage's own dtype: that of the first tensor, unless a wider one has to fit in.
        dtypes = [slot["dtype"] for slot in slots]
        self.program.storages.append(next(dtype for dtype in dtypes if dtype.itemsize == widest))
        self.storage_operands.append(("", "storage", self.described["storages"][storage][0], -begin, 0, 0))
        for slot in slots:
            view = self._view(slot)
            if view not in self.views:
                self.program.inputs.append(lowering.Input(number, view[1]))
                self.views[view] = self.program.new_slot()

    def _is_input(self, storage: int) -> bool:
        return bool(self.described["storages"][storage][1] < 0)

    def _lies_on_input(self, tensor: dict[str, Any]) -> bool:
        return bool(tensor["storage"] >= 0 and self._is_input(tensor["storage"]) and _span(tensor))

    def _view(self, slot: dict[str, Any]) -> View:
        offset, rest = divmod(slot["byte_offset"] - self.begins.get(slot["storage"], 0), slot["dtype"].itemsize)
        if rest:
            raise NotImplementedError("a tensor does not lie at a multiple of its dtype's size in its storage")
        return slot["storage"], self._meta(slot, offset)

    @staticmethod
    def _meta(slot: dict[str, Any], offset: int) -> lowering.TensorMeta:
        return lowering.TensorMeta(slot["dtype"], tuple(slot["sizes"]), tuple(slot["strides"]), offset, slot["conj"], slot["neg"])

    # ---- numbers ----

    @staticmethod
    def _number_type(slot: dict[str, Any]) -> str | None:
        """What a host scalar is passed as; None: as a tensor of its dtype."""
        return _NUMBERS.get(slot["dtype"]) if slot["wrapped_number"] else None

    @staticmethod
    def _scalar_key(slot: dict[str, Any]) -> Any:
        return slot["dtype"], tuple(slot["source"])

    def _host_scalar(self, slot: dict[str, Any]) -> Any:
        kind = self._number_type(slot)
        if kind is not None:
            return self._number(kind, slot["source"])
        key = self._scalar_key(slot)
        if key not in self.scalars:
            raw = bytearray(struct.pack("<qq", *slot["source"][1:]))
            made = self.scalars[key] = self.program.new_slot()
            self.program.constants[made.index] = torch.frombuffer(raw, dtype=slot["dtype"], count=1)[0].clone()
        return self.scalars[key]

    def _number(self, kind: str, source: tuple[Any, ...]) -> Any:
        example, size, layout = _PAYLOADS[kind]
        if source[0] == "constant":
            values = struct.unpack(layout, struct.pack("<qq", *source[1:]))
            return complex(*values) if kind == "complex" else values[0]
        key = kind, tuple(source)
        if key not in self.payloads:
            self.payloads[key] = lowering.Payload(len(self.program.payloads), type(example))
            self.program.payloads.append(example)
            self.payload_operands.append(("", kind, source[1], 0, source[2], size))
        return self.payloads[key]

    # ---- calls ----

    def _call(self, call: dict[str, Any]) -> None:
        op = _overload(call["name"], call["overload"])
        arguments: list[Any] = [list(value) if isinstance(value, (list, tuple)) else value for value in call["arguments"]]
        for slot in call["slots"]:
            _place(arguments, slot["place"], self._tensor(slot))
        for place, kind, source in call["payloads"]:
            _place(arguments, place, self._number(kind, source))
        results = [self.program.new_slot() for _ in call["returns"]]
        strides = [None if returned is None else tuple(returned["strides"]) for returned in call["returns"]]
        for index, (one, given) in enumerate(_elements(op, arguments)):
            args, kwargs = _split(one, given)
            whole = one is op
            part = slice(None) if whole else slice(index, index + 1)
            self.program.calls.append(lowering.Call(one, args, kwargs, list(results[part]), strides[part]))
        for slot, returned in zip(results, call["returns"], strict=True):
            if returned is None or returned["storage"] < 0 or returned["storage"] in self.makers:
                continue
            if self._is_input(returned["storage"]):
                if _span(returned):
                    place = self.views[self._view(returned)]
                    self.program.calls.append(lowering.Call(torch.ops.aten.copy_.default, (place, slot), {}, [self.program.new_slot()]))
                continue
            self.makers[returned["storage"]] = slot
            if returned["byte_offset"] == 0:
                self.views[returned["storage"], self._meta(returned, 0)] = slot

    def _tensor(self, slot: dict[str, Any]) -> Any:
        if slot["source"] is not None:
            return self._host_scalar(slot)
        if slot["storage"] < 0 or not _span(slot):
            # No memory: a ZeroTensor's zeros, or no elements.
            made = self.program.new_slot()
            self.program.constants[made.index] = torch.zeros(slot["sizes"], dtype=slot["dtype"])
            return made
        view = self._view(slot)
        if view not in self.views:
            made = self.views[view] = self.program.new_slot()
            self.program.calls.append(lowering.Call(_StorageView(view[1]), (self._maker(view[0], slot["dtype"]),), {}, [made]))
        return self.views[view]

    def _maker(self, storage: int, dtype: torch.dtype = torch.uint8) -> lowering.Slot:
        """A tensor on a fresh storage. Memory that no call has filled reads as zeros here."""
        if storage not in self.makers:
            size = self.described["storages"][storage][1]
            made = self.makers[storage] = self.program.new_slot()
            self.program.calls.append(lowering.Call(torch.ops.aten.full.default, ([size // dtype.itemsize], 0), {"dtype": dtype}, [made]))
        return self.makers[storage]


# Overloads of foreach operators -> those of the operators that they apply to each element, in order of preference. A number that
# changes from launch to launch is passed as a 0-dim tensor where there is an overload for that.
_ELEMENT_OVERLOADS = {
    "default": ("default",),
    "List": ("Tensor", "default"),
    "Tensor": ("Tensor",),
    "Scalar": ("Tensor",),
    "ScalarList": ("Tensor",),
}
_NUMBER_OVERLOADS = {"lerp": ("Scalar",), "pow": ("Tensor_Scalar", "Scalar"), "addcmul": ("default",), "addcdiv": ("default",)}


def _elements(op: torch._ops.OpOverload, arguments: list[Any]) -> list[tuple[torch._ops.OpOverload, list[Any]]]:
    """The calls that a call stands for: a foreach operator is one call for each element, anything else is itself."""
    name = op._schema.name.removeprefix("aten::_foreach_")
    packet = getattr(torch.ops.aten, name, None) if name != op._schema.name else None
    wanted = _ELEMENT_OVERLOADS.get(op._overloadname, ())
    if op._overloadname in ("Scalar", "ScalarList"):
        wanted = _NUMBER_OVERLOADS.get(name.rstrip("_"), wanted)
    found = next((getattr(packet, overload) for overload in wanted if packet is not None and overload in packet.overloads()), None)
    parameters = found._schema.arguments if found is not None else []
    if found is None or len(parameters) < len(arguments) or not all(item.has_default_value() for item in parameters[len(arguments) :]):
        return [(op, arguments)]
    rest = [parameter.default_value for parameter in parameters[len(arguments) :]]
    return [
        (found, [argument[index] if isinstance(argument, list) else argument for argument in arguments] + rest)
        for index in range(len(arguments[0]))
    ]


def _overload(name: str, overload: str) -> torch._ops.OpOverload:
    namespace, base = name.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def _split(op: torch._ops.OpOverload, arguments: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in schema order as (args, kwargs)."""
    schema = op._schema.arguments
    args = tuple(value for argument, value in zip(schema, arguments, strict=True) if not argument.kwarg_only)
    return args, {argument.name: value for argument, value in zip(schema, arguments, strict=True) if argument.kwarg_only}


def lower_described(described: dict[str, Any], generation: str) -> tuple[bytes, list[Operand], list[Operand]]:
    """The HLO of a described Program, and what its parameters and results are; see Note [Described Programs].

    ``generation``: "trn1", "trn2", "trn3". The HLO is empty when the lowering looks at the value of a number that comes with each launch:
    such numbers have to be described as constants.

    Raises NotImplementedError when a call has no lowering, with the reason.
    """
    builder = _Builder(described)
    program = builder.build()
    try:
        lowered = lower(program, generation)
    except NotLowered as error:
        raise NotImplementedError(f"it does not lower for {generation}: {error}") from error
    if lowered.specialised or any(isinstance(value, complex) for value in program.payloads):
        return b"", [], []  # a complex number would come as pairs of float64
    inputs = builder.operands()
    for number, (shape, dtype) in enumerate(lowered.parameters):
        inputs[number] = (*inputs[number][:5], math.prod(shape) * dtype.itemsize)
    outputs = [inputs[storage] for storage in lowered.written]
    for (_, word), told in zip(builder.escaping, lowered.outputs, strict=True):
        assert isinstance(told, Output) and not told.on_input, told
        outputs.append(("", "storage", word, 0, 0, lowered.result_bytes[told.index]))
    hlo, text = lowered.hlo_and_text()
    if why := absent_from_chip(text, generation):
        raise NotImplementedError(f"it does not lower for {generation}: {why}")
    return hlo, _named("input", inputs), _named("output", outputs)


def _named(kind: str, operands: list[Operand]) -> list[Operand]:
    return [(f"{kind}{index}", *operand[1:]) for index, operand in enumerate(operands)]


def compile_lowered(hlo: bytes, generation: str, lnc: int, name: str) -> bytes:
    """The NEFF; see :func:`torch_neuronx.compiler.compile_hlo` for what is raised. ``lnc``: physical cores behind a logical one."""
    from torch_neuronx.compiler.driver import compile_hlo
    from torch_neuronx.compiler.options import from_environment

    return compile_hlo(hlo, from_environment(generation, lnc), name=name).neff


def compile_lowered_in_background(hlo: bytes, generation: str, lnc: int, name: str, done: Callable[[bytes | BaseException], None]) -> None:
    """Gives the NEFF, or what the compiler has raised, to ``done``: at once when the cache has it, else later, on another thread.

    Raises CompilerError when it is known already that the compiler refuses the program.
    """
    from torch_neuronx.compiler import background
    from torch_neuronx.compiler.driver import compile_hlo, find_compiled
    from torch_neuronx.compiler.options import from_environment

    options = from_environment(generation, lnc)
    found = find_compiled(hlo, options)
    if found is not None:
        done(found.neff)
    else:
        background.submit(lambda: compile_hlo(hlo, options, name), done)
