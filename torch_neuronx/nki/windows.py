"""``nki.replace`` in windows of Adaptive Eager: which calls of a window a kernel stands for, and its replays.

``csrc/aten/window_kernels.h`` shows each window that becomes a Program to :func:`find`, described as in torch_neuronx/compiler/program.py.
It is written as an ATen graph in plain form (plain_form.py), and searched like any other.

:func:`run` is for the thread of launches. The comparison with the pattern is made there, too, on the CPU, on the memory of the launch.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.utils.matcher_utils import InternalMatch
from torch.utils._python_dispatch import _disable_current_modes

from torch_neuronx import _C
from torch_neuronx.nki import launches
from torch_neuronx.nki.plain_form import element, inverse, lies, listed, match_permutations, plain_form

if TYPE_CHECKING:
    from torch_neuronx.nki.replacement import Replacement

_replacements: list[Replacement] = []  # that are looked for

Place = tuple[int, int]  # storage, bytes from its base
Found = tuple[int, list[int], list[Place], list[Place], list[int]]  # as csrc/python/kernel_search.cpp reads it


def add(replacement: Replacement) -> Callable[[], None]:
    """Looks for ``replacement`` in windows that run from now on; gives a function that ends this."""
    _replacements.append(replacement)
    _C._nki_search_windows_again()

    def remove() -> None:
        if replacement in _replacements:
            _replacements.remove(replacement)
            _C._nki_search_windows_again()

    return remove


def find(described: dict[str, Any], scalars: Sequence[int]) -> list[Found]:
    """Kernels for calls of a window. ``scalars``: two words for each number that comes with a launch, those of this one."""
    found: list[Found] = []
    taken: set[int] = set()
    if not _replacements or not launches.start():
        return found
    with _as_nobody():
        window = _Window(described, scalars)
        for replacement in list(_replacements):
            for match in replacement.matches(window.gm, plain_form, window.refusal):
                calls = window.calls_of(match)
                if taken.isdisjoint(calls):
                    taken.update(calls)
                    found.append(window.kernel(replacement, match, calls))
                    replacement.windows += 1
    return found


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Without what the thread that closes a window has switched on: its modes, autocast, inference mode."""
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("neuron", enabled=False),
    ):
        yield


# --- a window as a graph ----------------------------------------------------------------------------------------------------------------


@dataclass
class _Value:
    """A tensor that lies in a storage: the node that has made it, or that stands for what was there before."""

    node: Node
    begin: int
    end: int
    tensor: torch.Tensor


_LAYOUTS = {"int": "<q8x", "bool": "<?15x", "float": "<d8x", "complex": "<dd"}
_WRAPPED = {torch.int64: "int", torch.bool: "bool", torch.float64: "float", torch.complex128: "complex"}


class _Window:
    """The ATen graph of a described window. ``calls``: which call a node is."""

    def __init__(self, described: dict[str, Any], scalars: Sequence[int]) -> None:
        self.described, self.scalars = described, scalars
        self.graph = Graph()
        self.calls: dict[Node, int] = {}
        self.places: dict[Node, Place] = {}  # where values begin
        self.numbers: dict[int, list[int]] = {}  # of a call: which scalars of the launch it uses
        self.values: dict[int, list[_Value]] = {}  # by storage
        self.views: dict[Any, Node] = {}
        self.reads: list[set[int]] = []
        self.writes: list[set[int]] = []
        self.inputs = sum(size < 0 for _, size in described["storages"])
        self.fakes = FakeTensorMode(allow_non_fake_inputs=True)
        lives_on: list[Node] = []
        for index, call in enumerate(described["calls"]):
            self._add(index, call, lives_on)
        self.graph.output(tuple(lives_on))
        self.gm = GraphModule(torch.nn.Module(), self.graph)

    def _add(self, index: int, call: dict[str, Any], lives_on: list[Node]) -> None:
        op = _overload(call["name"], call["overload"])
        arguments: list[Any] = [list(value) if isinstance(value, (list, tuple)) else value for value in call["arguments"]]
        arguments = [_typed(argument, value) for argument, value in zip(op._schema.arguments, arguments, strict=True)]
        self.numbers[index], written, read = [], [], set()
        for slot in call["slots"]:
            where, element = slot["place"]
            alias = op._schema.arguments[where].alias_info
            if slot["source"] is not None:
                value: Any = self._host_scalar(index, slot)
            else:
                value = self._operand(slot)
                read.add(slot["storage"])
                if alias is not None and alias.is_write:
                    written.append(slot)
            _place(arguments, where, element, value)
        for (where, element), kind, source in call["payloads"]:
            _place(arguments, where, element, self._number(index, kind, source))
        node = self.graph.call_function(op, tuple(arguments))
        self.calls[node] = index
        made = self._results(node, call, len(op._schema.returns), lives_on)
        self.reads.append(read)
        self.writes.append(made | {slot["storage"] for slot in written})
        for slot in written:
            self._settle(slot, node)
            lives_on.append(node)

    def _results(self, node: Node, call: dict[str, Any], returned: int, lives_on: list[Node]) -> set[int]:
        """Notes the tensors that a call makes; gives their storages."""
        made: set[int] = set()
        for number, result in enumerate(call["returns"]):
            if result is None:
                continue
            value = node
            if returned > 1 or len(call["returns"]) > 1:
                value = self.graph.call_function(element, (node, number))
                self.calls[value] = self.calls[node]
            self._settle(result, value)
            made.add(result["storage"])
            if result["storage"] < self.inputs:
                lives_on.append(value)
        return made

    def _settle(self, described: dict[str, Any], node: Node) -> None:
        """From now on ``node`` is what lies where ``described`` does."""
        tensor = self._fake(described)
        node.meta["val"] = tensor
        begin = described["byte_offset"]
        end = begin + _span(tensor)
        storage = described["storage"]
        self.places[node] = (storage, begin)
        rest = [value for value in self.values.get(storage, []) if value.end <= begin or value.begin >= end]
        self.values[storage] = [*rest, _Value(node, begin, end, tensor)]

    def _operand(self, slot: dict[str, Any]) -> Node:
        tensor = self._fake(slot)
        begin = slot["byte_offset"]
        end = begin + _span(tensor)
        for value in self.values.get(slot["storage"], []):
            if value.begin <= begin and end <= value.end and value.tensor.dtype == tensor.dtype:
                if begin == value.begin and lies(tensor) == lies(value.tensor):
                    return value.node
                if value.node.op != "placeholder":
                    return self._view(value, tensor, begin - value.begin)
        node = self.graph.placeholder(f"input{len(self.graph.nodes)}")
        if slot["storage"] < 0:
            return node  # without a value: it is no argument for a kernel
        node.meta["val"] = tensor
        self.places[node] = (slot["storage"], begin)
        self.values.setdefault(slot["storage"], []).append(_Value(node, begin, end, tensor))
        return node

    def _view(self, value: _Value, tensor: torch.Tensor, distance: int) -> Node:
        offset = distance // tensor.element_size()
        key = (value.node, str(lies(tensor)), offset)
        if key not in self.views:
            node = self.graph.call_function(torch.ops.aten.as_strided.default, (value.node, *lies(tensor), offset))
            storage, begin = self.places[value.node]
            node.meta["val"], self.places[node] = tensor, (storage, begin + distance)
            self.views[key] = node
        return self.views[key]

    def _fake(self, described: dict[str, Any]) -> torch.Tensor:
        with self.fakes:
            made = torch.empty_strided(described["sizes"], described["strides"], dtype=described["dtype"], device="neuron")
            made = torch._conj(made) if described["conj"] else made
            return torch._neg_view(made) if described["neg"] else made

    def _host_scalar(self, index: int, slot: dict[str, Any]) -> Any:
        kind = _WRAPPED.get(slot["dtype"]) if slot["wrapped_number"] else None
        if kind is not None:
            return self._number(index, kind, slot["source"])
        return self.graph.placeholder(f"host{len(self.graph.nodes)}")  # without a value: it is no argument for a kernel

    def _number(self, index: int, kind: str, source: tuple[Any, ...]) -> Any:
        words = list(source[1:])
        if source[0] == "word":
            first = source[1] - self.inputs
            self.numbers[index].append(first // 2)
            words = [_signed(word) for word in self.scalars[first : first + 2]]
        values = struct.unpack(_LAYOUTS[kind], struct.pack("<qq", *words))
        return complex(*values) if kind == "complex" else values[0]

    def calls_of(self, match: InternalMatch) -> list[int]:
        """The calls that a match stands for, ascending."""
        inner = [node for pattern, node in match.nodes_map.items() if pattern.op == "call_function"]
        return sorted({self.calls[node] for node in inner if node in self.calls})

    # What a match must be besides.

    def refusal(
        self, match: InternalMatch, inputs: Sequence[torch.Tensor], kernel: Callable[..., Any], pattern: Callable[..., Any]
    ) -> str | None:
        if any(not value.is_contiguous() for value in inputs):
            return "an argument is not contiguous, in a window"
        calls = self.calls_of(match)
        last = calls[-1]
        arguments = {self.places[node][0] for node in match.placeholder_nodes if isinstance(node, Node)}
        results = {self.places[node][0] for node in match.returning_nodes}
        if arguments & results:
            return "a result lies in the memory of an argument, in a window"
        between = [call for call in range(calls[0], last) if call not in calls]
        if any(self.writes[call] & (arguments | results) or self.reads[call] & results for call in between):
            return "something else writes to an argument, or needs a result, before the last operator of the pattern, in a window"
        return self._works_on_the_host(inputs, kernel, pattern)

    def _works_on_the_host(self, inputs: Sequence[torch.Tensor], *functions: Callable[..., Any]) -> str | None:
        """Replays see the memory of a launch as CPU tensors."""
        with self.fakes:
            there = [torch.empty(value.shape, dtype=value.dtype) for value in inputs]
            for function in functions:
                try:
                    results = function(*there)
                except Exception as error:
                    return f"in a window it would run on CPU tensors, and does not: {type(error).__name__}: {error}"
                if any(one.device.type != "cpu" for one in listed(results)):
                    return "in a window it would run on CPU tensors, and gives others"
        return None

    def kernel(self, replacement: Replacement, match: InternalMatch, calls: list[int]) -> Found:
        """What C++ is told of an accepted match."""
        permutations = match_permutations(match)
        inputs = [inverse(node.meta["val"], way) for node, way in zip(match.placeholder_nodes, permutations, strict=True)]
        number = next(_numbers)
        _kernels[number] = _WindowKernel(replacement, _kinds(inputs), _kinds([node.meta["val"] for node in match.returning_nodes]))
        places = [[self.places[node] for node in nodes] for nodes in (match.placeholder_nodes, match.returning_nodes)]
        return number, calls, places[0], places[1], sorted({scalar for call in calls for scalar in self.numbers[call]})


def _signed(word: int) -> int:
    return int(word) - (1 << 64) if word >> 63 else int(word)


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element's begin to the last one's end."""
    if not tensor.numel():
        return 0
    return (sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True)) + 1) * tensor.element_size()


def _place(arguments: list[Any], where: int, element: int, value: Any) -> None:
    if element < 0:
        arguments[where] = value
    else:
        arguments[where][element] = value


def _overload(name: str, overload: str) -> torch._ops.OpOverload:
    namespace, base = name.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


@functools.cache
def _dtype_of(number: int) -> torch.dtype:
    """The dtype with a number of c10's."""
    return torch.ops.aten.empty.memory_format([0], dtype=number, device="meta").dtype


def _typed(argument: Any, value: Any) -> Any:
    """A constant as Python has it; dtypes come as their numbers."""
    is_dtype = isinstance(value, int) and not isinstance(value, bool) and "ScalarType" in str(argument.real_type)
    return _dtype_of(value) if is_dtype else value


# --- replays ----------------------------------------------------------------------------------------------------------------------------

_numbers = itertools.count(1)
_kernels: dict[int, _WindowKernel] = {}
_Kind = tuple[tuple[int, ...], torch.dtype]


def _kinds(tensors: Sequence[torch.Tensor]) -> list[_Kind]:
    return [(tuple(one.shape), one.dtype) for one in tensors]


@dataclass
class _WindowKernel:
    """A replacement at one place of a window. Its tensors are made once and pointed at the memory of each launch."""

    replacement: Replacement
    inputs: list[_Kind]
    outputs: list[_Kind]
    compared: bool = False
    slots: list[torch.Tensor] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)

    def run(self, addresses: Sequence[int]) -> None:
        if not self.slots:
            for shape, dtype in [*self.inputs, *self.outputs]:
                self.slots.append(_C._nki_make_slot(torch.Size(shape).numel() * dtype.itemsize))
                self.tensors.append(self.slots[-1].view(dtype).view(shape))
        for slot, address in zip(self.slots, addresses, strict=True):
            _C._nki_point_slot(slot, address)
        inputs, outputs = self.tensors[: len(self.inputs)], self.tensors[len(self.inputs) :]
        with torch.no_grad():
            for output, result in zip(outputs, listed(self.replacement.kernel(*inputs)), strict=True):
                output.copy_(result)
            if not self.compared:
                self.replacement.compare(outputs, listed(self.replacement.pattern(*inputs)), inputs)
                self.compared = True


def run(number: int, addresses: Sequence[int]) -> None:
    """A replay, on the thread of launches."""
    _kernels[number].run(addresses)
