"""Programs as the lowering sees them: calls on slots, inputs on storages. Knows no JAX.

A Program is built from one eager call, from an FX graph (AOTAutograd, torch.export, make_fx), or by hand.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


@dataclass(frozen=True)
class TensorMeta:
    """A strided tensor; sizes, strides and offset count elements. Sizes may be ``torch.SymInt``."""

    dtype: torch.dtype
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any = 0
    conj: bool = False
    neg: bool = False

    @staticmethod
    def of(tensor: torch.Tensor, offset: Any = None) -> TensorMeta:
        """The metadata of a tensor; ``offset``: where it starts in the storage that the Program names."""
        start = tensor.storage_offset() if offset is None else offset
        return TensorMeta(tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), start, tensor.is_conj(), tensor.is_neg())

    @property
    def span(self) -> int:
        """Elements from the storage's start to the end of the last element."""
        if 0 in self.sizes:
            return 0
        return self.offset + 1 + sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))


@dataclass(frozen=True)
class Slot:
    """A tensor of the Program: an input, or a result of a call, by number."""

    index: int


@dataclass(frozen=True)
class Payload:
    """A number that comes with each launch; ``kind`` is ``int``, ``float``, ``bool`` or ``complex``."""

    index: int
    kind: type


@dataclass(frozen=True)
class Input:
    """A tensor that comes with each launch, on storage number ``storage``."""

    storage: int
    meta: TensorMeta


@dataclass
class Call:
    """One overload; tensors in ``args`` and ``kwargs`` are Slots. ``results``: the slots of its tensors, in order (None: not used)."""

    op: Any  # an OpOverload, or a plain function of sizes
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Slot | None]
    strides: list[Any] | None = None  # of each result, where the Program knows better than a meta kernel (layouts that kernels choose)
    location: str | None = None  # the Python line that it comes from, for messages


@dataclass
class Program:
    """Calls in order. ``storages``: the dtype of each input storage; a storage holds what its inputs span."""

    inputs: list[Input] = field(default_factory=list)
    storages: list[torch.dtype] = field(default_factory=list)
    payloads: list[Any] = field(default_factory=list)  # an example value each; its type counts
    calls: list[Call] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)  # Slots; None and numbers pass through
    examples: list[torch.Tensor] = field(default_factory=list)  # fake tensors of the inputs, where sizes are symbols
    constants: dict[int, torch.Tensor] = field(default_factory=dict)  # slots that hold a fixed tensor
    slots: int = 0
    draws: bool = True  # False: random calls pass their seed and offset, as the device's own do; others are refused

    def new_slot(self) -> Slot:
        self.slots += 1
        return Slot(self.slots - 1)

    @property
    def symbolic(self) -> bool:
        return any(isinstance(size, torch.SymInt) for item in self.inputs for size in item.meta.sizes)

    # ---- builders ----

    @staticmethod
    def from_call(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> Program:
        """One eager call. Scalars become payloads; a tensor alone on its storage starts at offset 0."""
        program = Program()
        named = _by_name(op, args, kwargs or {})
        tensors = [leaf for leaf in tree_leaves(list(named.values())) if isinstance(leaf, torch.Tensor)]
        groups: dict[int, list[torch.Tensor]] = {}
        for tensor in dict.fromkeys(tensors):
            groups.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        known: dict[torch.Tensor, Slot] = {}
        for group in groups.values():
            program.storages.append(group[0].dtype)
            for tensor in group:
                known[tensor] = program.new_slot()
                offset = 0 if len(group) == 1 else tensor.storage_offset()
                program.inputs.append(Input(len(program.storages) - 1, TensorMeta.of(tensor, offset)))
        numbers = {argument.name for argument in op._schema.arguments if _comes_with_each_launch(argument)}

        def slotted(name: str, value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return known[value]
            if name in numbers and isinstance(value, (bool, int, float, complex)) and not _decides_shape(op):
                program.payloads.append(value)
                return Payload(len(program.payloads) - 1, type(value))
            if isinstance(value, (list, tuple)):
                return type(value)(slotted(name, item) for item in value)
            return value

        given = {name: slotted(name, value) for name, value in named.items()}
        positional = tuple(
            given.pop(argument.name) for argument in op._schema.arguments if argument.name in given and not argument.kwarg_only
        )
        results: list[Slot | None] = [program.new_slot() for _ in op._schema.returns]
        program.calls.append(Call(op, positional, given, results))
        program.outputs = list(results)
        return program

    @staticmethod
    def from_graph(module: torch.fx.GraphModule, inputs: Sequence[Any] | None = None) -> Program:
        """A graph whose nodes carry ``meta["val"]`` (or ``inputs``: an example of each placeholder)."""
        return _GraphReader(module, inputs).program


def _by_name(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {argument.name: value for argument, value in zip(op._schema.arguments, args, strict=False)} | kwargs


def _comes_with_each_launch(argument: Any) -> bool:
    """Scalars, lists of them, and the rate of a fused optimizer: they change from step to step."""
    kind = str(argument.type)
    return kind in ("number", "Scalar", "List[number]", "List[Scalar]") or (argument.name == "lr" and kind == "float")


def _decides_shape(op: torch._ops.OpOverload) -> bool:
    """Overloads whose Scalars decide a shape or a dtype."""
    return op._schema.name.removeprefix("aten::").startswith(("arange", "range", "linspace", "logspace", "scalar_tensor"))


class _GraphReader:
    def __init__(self, module: torch.fx.GraphModule, inputs: Sequence[Any] | None) -> None:
        self.module, self.program = module, Program()
        self.examples = iter(inputs) if inputs is not None else None
        self.values: dict[torch.fx.Node, Any] = {}
        self.storages: dict[int, int] = {}
        for node in module.graph.nodes:
            getattr(self, f"_{node.op}")(node)

    def _placeholder(self, node: torch.fx.Node) -> None:
        example = next(self.examples) if self.examples is not None else node.meta["val"]
        if not isinstance(example, torch.Tensor):
            if isinstance(example, torch.SymInt):
                self.values[node] = example
            else:
                self.program.payloads.append(example)
                self.values[node] = Payload(len(self.program.payloads) - 1, type(example))
            return
        key = example.untyped_storage()._cdata
        if key not in self.storages:
            self.storages[key] = len(self.program.storages)
            self.program.storages.append(example.dtype)
        self.program.inputs.append(Input(self.storages[key], TensorMeta.of(example)))
        self.program.examples.append(example)
        # Inputs come first, so that slot i is input i.
        assert not self.program.calls
        self.values[node] = self.program.new_slot()

    def _get_attr(self, node: torch.fx.Node) -> None:
        value = operator.attrgetter(str(node.target))(self.module)
        if isinstance(value, torch.Tensor):
            slot = self.program.new_slot()
            self.program.constants[slot.index] = value
            value = slot
        self.values[node] = value

    def _call_function(self, node: torch.fx.Node) -> None:
        args = tree_map(lambda item: self.values[item] if isinstance(item, torch.fx.Node) else item, node.args)
        kwargs = tree_map(lambda item: self.values[item] if isinstance(item, torch.fx.Node) else item, dict(node.kwargs))
        if node.target is operator.getitem and isinstance(args[0], (list, tuple)):
            self.values[node] = args[0][args[1]]
            return
        known = node.meta.get("val")
        if isinstance(known, (list, tuple)):
            results: Any = [self.program.new_slot() for _ in known]
            self.values[node] = results
        else:
            results = [self.program.new_slot()]
            self.values[node] = results[0]
        vals = known if isinstance(known, (list, tuple)) else [known]
        strides = [tuple(val.stride()) if isinstance(val, torch.Tensor) and val.layout is torch.strided else None for val in vals]
        self.program.calls.append(Call(node.target, args, kwargs, list(results), strides, _location(node)))

    def _output(self, node: torch.fx.Node) -> None:
        self.program.outputs = [self.values[item] if isinstance(item, torch.fx.Node) else item for item in tree_leaves(node.args[0])]


def _location(node: torch.fx.Node) -> str | None:
    """``file:line`` of the user's code, from what Dynamo or make_fx recorded."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    if not lines:
        return None
    parts = lines[-1].split('"')
    number = parts[2].split("line")[1].split(",")[0].strip() if len(parts) > 2 and "line" in parts[2] else "?"
    return f"{parts[1]}:{number}"
