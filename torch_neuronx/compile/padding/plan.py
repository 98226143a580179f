"""Decides which symbolic sizes of a part can be padded, and writes the part for padded sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torch_neuronx._utils import DEVICE
from torch_neuronx.compile.padding.layout import Layout, Order, Refused, free_symbols, text
from torch_neuronx.compile.padding.padder import Padder

# A dimension of a tensor is (real size, size at the bucket), both as Python source on the names of the symbols.


@dataclass(frozen=True)
class Symbol:
    """A symbolic size, and where its value is found."""

    name: str
    label: str  # for people: "L['x'].size(1)"
    dim: int | None  # dimension of the argument that it comes from
    input: int
    input_dim: int | None  # None: the input is the number itself
    bucketed: bool
    limit: int | None  # its bucket must not be larger


@dataclass(frozen=True)
class Padded:
    """A tensor that goes in or comes out flat. ``order``: its dimensions in memory, the outermost first."""

    sizes: tuple[str, ...]
    order: tuple[int, ...]


@dataclass
class Plan:
    """How a part runs on padded sizes; all of it can be pickled."""

    symbols: list[Symbol] = field(default_factory=list)
    padded: dict[int, Padded] = field(default_factory=dict)  # inputs
    sizes: dict[int, str] = field(default_factory=dict)  # integer inputs that depend on padded sizes
    floats: list[int] = field(default_factory=list)  # inputs: numbers that were computed from real sizes, to be passed as tensors
    ints: list[str] = field(default_factory=list)  # further integer inputs, at the bucket
    numbers: list[str] = field(default_factory=list)  # real sizes, in one tensor behind the ints
    outputs: dict[int, Padded] = field(default_factory=dict)
    output_sizes: dict[int, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # label of a symbol -> why it stays exact
    writes: bool = False

    @property
    def pads(self) -> bool:
        return any(symbol.bucketed for symbol in self.symbols)


def make(gm: GraphModule, inputs: Sequence[Node], nodes: Sequence[Node], outputs: Sequence[Node]) -> tuple[Plan, Graph] | None:
    """The plan of a part, and its graph on padded sizes; None when the part has no symbolic sizes.

    The graph takes the part's inputs, padded tensors flat, then ``Plan.ints``, then one int64 tensor of ``Plan.numbers``.
    """
    symbols = _find(inputs)
    if not symbols:
        return None
    order = Order(_shapes(gm.graph.nodes))
    bucketed, refused = frozenset(symbols), dict[str, str]()
    while bucketed:
        try:
            plan, graph = _write(order, symbols, bucketed, inputs, nodes, outputs)
            plan.refused = refused
            return plan, graph
        except Refused as why:
            gone = (why.symbols & bucketed) or bucketed
            refused.update({symbols[name].label: why.text for name in sorted(gone)})
            bucketed -= gone
    return Plan([symbols[name] for name in sorted(symbols)], refused=refused), Graph()


def _shapes(nodes: Iterable[Node]) -> Iterable[Sequence[Any]]:
    for node in nodes:
        value = node.meta.get("val")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, torch.Tensor):
                yield one.shape


def _find(inputs: Sequence[Node]) -> dict[str, Symbol]:
    """Symbols whose value is an input, or the size of one."""
    found: dict[str, Symbol] = {}
    for number, node in enumerate(inputs):
        value = node.meta.get("val")
        places = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for dim, size in places:
            name = _plain(size)
            if name is not None and name not in found:
                label, argument_dim = _source(size, dim)
                found[name] = Symbol(name, label, argument_dim, number, dim, False, None)
    return found


def _plain(size: Any) -> str | None:
    """The name of a size that is a symbol and comes from a shape, not from data."""
    if not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol or str(size.node.expr).startswith("u"):
        return None
    return str(size.node.expr)


def _source(size: Any, dim: int | None) -> tuple[str, int | None]:
    """Which dimension of which argument a symbol is, as Dynamo has noted it."""
    sources = size.node.shape_env.var_to_sources.get(size.node.expr) or []
    for source in sources:
        index, base = getattr(source, "idx", None), getattr(source, "base", None)
        if isinstance(index, int) and base is not None:
            name = base.name() if callable(base.name) else base.name
            return f"{name}.size({index})", index
    return str(size), dim


def _write(
    order: Order,
    symbols: dict[str, Symbol],
    bucketed: frozenset[str],
    inputs: Sequence[Node],
    nodes: Sequence[Node],
    outputs: Sequence[Node],
) -> tuple[Plan, Graph]:
    device = _device(inputs)
    padder, plan = Padder(order, bucketed, device), Plan()
    flat: list[tuple[Node, Node, Layout, tuple[int, ...]]] = []
    for number, node in enumerate(inputs):
        value = node.meta.get("val")
        padder.made[node] = padder.input(node.name)
        if not isinstance(value, torch.Tensor):
            if isinstance(value, torch.SymFloat) and free_symbols(value) & bucketed:
                plan.floats.append(number)
                padder.floats.add(padder.made[node])
            elif free_symbols(value) & bucketed:
                plan.sizes[number] = text(value)
            continue
        padder.layouts[node] = layout = order.layout(value.shape, bucketed)
        if padder.dims(node):
            if value.device != device or value.is_conj() or value.is_neg():
                raise padder.refuse("a size of a tensor on the host, or of a conjugate", node)
            memory = _memory_order(value)
            plan.padded[number] = Padded(tuple(map(text, value.shape)), memory)
            flat.append((node, padder.made[node], layout, memory))
    before = padder.last_input
    padder.number_input = padder.input("real_sizes")
    padder.last_input = before  # integers are passed before it
    for node, new, layout, memory in flat:
        padder.made[node] = padder.unpack(new, layout, memory, _padding(node.meta["val"].dtype))
    for node in nodes:
        padder.add(node)
    results: list[Any] = []
    for number, node in enumerate(outputs):
        value, new = node.meta.get("val"), padder.made[node]
        if isinstance(value, torch.Tensor) and padder.dims(node):
            memory = _memory_order(value)
            plan.outputs[number] = Padded(tuple(map(text, value.shape)), memory)
            new = padder.pack(new, padder.layout(node), memory)
        elif not isinstance(value, torch.Tensor) and free_symbols(value) & bucketed:
            plan.output_sizes[number] = text(value)
        results.append(new)
    padder.graph.output(results)
    plan.ints, plan.numbers = list(padder.ints), list(padder.numbers)
    plan.writes = any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in nodes)
    known = frozenset(symbols)
    for expression in (*plan.ints, *plan.numbers, *plan.sizes.values(), *plan.output_sizes.values(), *_sizes(plan)):
        if unknown := set(compile(expression, "size", "eval").co_names) - known:
            raise Refused(f"{', '.join(sorted(unknown))}: no input has this size by itself")
    plan.symbols = [
        Symbol(one.name, one.label, one.dim, one.input, one.input_dim, one.name in bucketed, padder.limits.get(one.name))
        for _, one in sorted(symbols.items())
    ]
    return plan, padder.graph


def _padding(dtype: torch.dtype) -> Any:
    """What inputs are padded with: any value would do, but this one makes no NaN of its own, and is an index."""
    return False if dtype == torch.bool else 0


def _sizes(plan: Plan) -> Iterable[str]:
    for one in (*plan.padded.values(), *plan.outputs.values()):
        yield from one.sizes


def _device(inputs: Sequence[Node]) -> torch.device:
    found = {node.meta["val"].device for node in inputs if isinstance(node.meta.get("val"), torch.Tensor)}
    devices = [device for device in found if device.type == DEVICE]
    if len(devices) != 1:
        raise Refused("the graph has no tensor on the device, or tensors on several")
    return devices[0]


def _memory_order(value: torch.Tensor) -> tuple[int, ...]:
    """Dimensions by stride, the largest first. Symbols stand for a large number, for which all of them are distinct."""
    strides = []
    for stride in value.stride():
        expression = stride.node.expr if isinstance(stride, torch.SymInt) else None
        strides.append(int(stride) if expression is None else int(expression.subs(dict.fromkeys(expression.free_symbols, 1_000_003))))
    # A size of one, and a stride of zero (an expanded dimension), say nothing about the order.
    return tuple(sorted(range(value.dim()), key=lambda dim: (-strides[dim], dim)))
