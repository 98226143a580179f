"""Rewrites the FX graph of one part for padded sizes, node by node, or refuses."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

from torch_neuronx.compile.cut import values
from torch_neuronx.compile.padding.layout import (
    Factor,
    Layout,
    Order,
    Refused,
    agrees,
    free_symbols,
    normal,
    product,
    symbols_of,
    text,
)

aten = torch.ops.aten
Bound = dict[str, Any]  # arguments of a call by the names of its schema


class Padder:
    """One rewriting. Invariant: each valid element of a new node is the element of the old one; what the others hold is unknown, but for
    what :meth:`fill` has put there.
    """

    def __init__(self, order: Order, bucketed: frozenset[str], device: torch.device) -> None:
        self.order, self.bucketed, self.device = order, bucketed, device
        self.graph = Graph()
        self.made: dict[Node, Any] = {}  # old node -> new node
        self.layouts: dict[Node, Any] = {}  # old node -> layout of its tensor, or a list of them
        self.filled: dict[Node, dict[int, Any]] = {}  # new node -> dimension -> what its padding holds
        self.masks: dict[tuple[Factor, ...], Node] = {}
        self.ints: dict[str, Node] = {}  # sizes at the bucket, passed as integers
        self.numbers: dict[str, Node] = {}  # sizes as they really are, in one tensor on the device
        self.limits: dict[str, int] = {}  # symbol -> what its bucket must not exceed
        self.floats: set[Node] = set()  # new nodes of 0-dim float32 tensors: what was computed from real sizes before
        self.number_input: Node | None = None
        self.last_input: Node | None = None

    # ---- what nodes are ----

    def layout(self, node: Node) -> Layout:
        found: Layout = self.layouts[node]
        return found

    def dims(self, node: Node) -> list[int]:
        """Padded dimensions of a tensor."""
        return [i for i, dim in enumerate(self.layout(node)) if self.is_padded(dim)]

    def is_padded(self, dim: Iterable[Factor]) -> bool:
        return any(factor in self.bucketed for factor in dim)

    def refuse(self, text: str, *nodes: Node) -> Refused:
        """What to raise; ``nodes`` have the symbols that must stay exact, all of the graph's when none is given."""
        return Refused(text, set().union(*(symbols_of(self.layout(node)) & self.bucketed for node in nodes), set()))

    # ---- new nodes ----

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        return self.graph.call_function(op, args, kwargs)

    def emit(self, op: Any, bound: Bound) -> Node:
        """A call with ``bound`` arguments, whose old nodes become the new ones."""
        schema = op._schema.arguments
        mapped = {name: self.new(value) for name, value in bound.items()}
        args = tuple(mapped[one.name] for one in schema if not one.kwarg_only)
        return self.graph.call_function(op, args, {one.name: mapped[one.name] for one in schema if one.kwarg_only})

    def new(self, value: Any) -> Any:
        """``value`` with old nodes replaced; new ones stay."""
        return torch.fx.node.map_arg(value, lambda node: self.made.get(node, node))

    def input(self, name: str) -> Node:
        before = self.last_input
        with self.graph.inserting_after(before) if before is not None else self.graph.inserting_before():
            self.last_input = self.graph.placeholder(name)
        return self.last_input

    def size(self, factors: Iterable[Factor]) -> Any:
        """Elements at the bucket: an int, or the node of an integer input."""
        dim = normal(factors)
        if not symbols_of([dim]):
            return int(dim[0]) if dim else 1
        name = product(dim)
        if name not in self.ints:
            self.ints[name] = self.input(f"bucket_{len(self.ints)}")
        return self.ints[name]

    def number(self, expression: str) -> Any:
        """A real size: an int, or a 0-dim int64 tensor that comes with each launch."""
        if expression.isdecimal():
            return int(expression)
        if expression not in self.numbers:
            assert self.number_input is not None
            first = next(node for node in self.graph.nodes if node.op != "placeholder")  # masks and indices come before numbers
            with self.graph.inserting_before(first):
                self.numbers[expression] = self.call(aten.select.int, self.number_input, 0, len(self.numbers))
        return self.numbers[expression]

    def iota(self, factors: Iterable[Factor]) -> Node:
        return self.call(aten.arange.default, self.size(factors), device=self.device)

    def padding_of(self, dim: Sequence[Factor]) -> Node:
        """True at the padding of a dimension: a vector of booleans."""
        key = tuple(dim)
        if key in self.masks:
            return self.masks[key]
        found: Node | None = None
        for place, factor in enumerate(dim):
            if factor not in self.bucketed:
                continue
            at = self.iota(dim)
            if (inner := self.size(dim[place + 1 :])) != 1:
                at = self.call(aten.div.Tensor_mode, at, inner, rounding_mode="floor")
            if place:
                at = self.call(aten.remainder.Scalar, at, self.size([factor]))
            beyond = self.call(aten.ge.Tensor, at, self.number(str(factor)))
            found = beyond if found is None else self.call(aten.logical_or.default, found, beyond)
        assert found is not None
        self.masks[key] = found
        return found

    def fill(self, node: Node, value: Any, dims: Iterable[int] | None = None) -> Node:
        """``node`` with ``value`` in the padding of ``dims`` (default: of all); as it is where that is there already."""
        layout, new = self.layout(node), self.made[node]
        return self.fill_new(new, layout, value, self.dims(node) if dims is None else dims)

    def fill_new(self, new: Node, layout: Layout, value: Any, dims: Iterable[int]) -> Node:
        known = dict(self.filled.get(new, {}))
        for dim in dims:
            if not self.is_padded(layout[dim]) or known.get(dim) == value:
                continue
            shape = [1] * len(layout)
            shape[dim] = -1
            mask = self.call(aten.view.default, self.padding_of(layout[dim]), shape)
            new = self.call(aten.masked_fill.Scalar, new, mask, value)
            # What two dimensions share of their padding has the new value now.
            known = {other: held for other, held in known.items() if held == value} | {dim: value}
            self.filled[new] = known
        return new

    # ---- between a dense tensor of the real sizes and a padded one ----

    def unpack(self, flat: Node, layout: Layout, order: Sequence[int], zero: Any) -> Node:
        """The padded tensor of a flat one whose first elements are those of the real tensor, its dimensions from ``order[0]`` inwards."""
        factors = normal(factor for dim in order for factor in layout[dim])
        rows, inner = self._rows(factors)
        new = flat
        if len(rows) > 1:
            index: Any = None
            for place, factor in enumerate(rows):
                shape = [1] * len(rows)
                shape[place] = -1
                at = self.call(aten.view.default, self.iota([factor]), shape)
                if (stride := self.number(product(rows[place + 1 :]))) != 1:
                    at = self.call(aten.mul.Tensor, at, stride)
                index = at if index is None else self.call(aten.add.Tensor, index, at)
            new = self.call(aten.view.default, new, [self.size(rows), self.size(inner)])
            new = self.call(aten.index_select.default, new, 0, self.call(aten.view.default, index, [self.size(rows)]))
        new = self.call(aten.view.default, new, [self.size(layout[dim]) for dim in order])
        if list(order) != sorted(order):
            new = self.call(aten.permute.default, new, [list(order).index(dim) for dim in range(len(layout))])
        return self.fill_new(new, layout, zero, [i for i, dim in enumerate(layout) if self.is_padded(dim)])

    def pack(self, new: Node, layout: Layout, order: Sequence[int]) -> Node:
        """The other way round: a flat tensor, as large as the padded one, with the real elements first."""
        factors = normal(factor for dim in order for factor in layout[dim])
        rows, inner = self._rows(factors)
        if list(order) != sorted(order):
            new = self.call(aten.permute.default, new, list(order))
        if len(rows) > 1:
            at, index = self.iota(rows), None
            for place, factor in enumerate(rows):
                stride = self.number(product(rows[place + 1 :]))
                part = at if stride == 1 else self.call(aten.div.Tensor_mode, at, stride, rounding_mode="floor")
                # What lies behind the real elements has to be an index, too.
                real = self.number(str(factor)) if place else self.size([factor])
                part = self.call(aten.remainder.Tensor if isinstance(real, Node) and place else aten.remainder.Scalar, part, real)
                if (step := self.size(rows[place + 1 :])) != 1:
                    part = self.call(aten.mul.Tensor, part, step)
                index = part if index is None else self.call(aten.add.Tensor, index, part)
            new = self.call(aten.reshape.default, new, [self.size(rows), self.size(inner)])
            new = self.call(aten.index_select.default, new, 0, index)
        return self.call(aten.reshape.default, new, [-1])

    def _rows(self, factors: Sequence[Factor]) -> tuple[Sequence[Factor], Sequence[Factor]]:
        """Factors up to the last padded one, and the rest, which stays together."""
        last = max(i for i, factor in enumerate(factors) if factor in self.bucketed)
        return factors[: last + 1], factors[last + 1 :]

    # ---- old nodes ----

    def add(self, node: Node) -> None:
        """Rewrites one node of the part."""
        try:
            self._add(node)
        except Refused as refused:
            if refused.text.startswith(("aten", "a size ", "a number ")):
                raise
            raise Refused(f"{node.target}: {refused.text}{_line(node)}", refused.symbols) from None

    def _add(self, node: Node) -> None:
        value = node.meta.get("val")
        if node.target is operator.getitem and isinstance(node.args[0], Node):
            of, index = node.args[0], node.args[1]
            self.made[node] = self.call(operator.getitem, self.made[of], index)
            self.layouts[node] = self.layouts[of][index] if of in self.layouts else ()
            return
        tensors = [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
        if not tensors:  # a number: what it is computed from has the bucket's value
            if not isinstance(value, (int, torch.SymInt)) and free_symbols(value) & self.bucketed:
                raise Refused(f"a size decides about {value}", free_symbols(value) & self.bucketed)
            self.made[node] = self.graph.node_copy(node, lambda old: self.made[old])
            self.made[node].meta.clear()
            return
        if not self._touched(node, tensors):
            self.made[node] = self.graph.node_copy(node, lambda old: self.made[old])
            self.made[node].meta.clear()
            self.layouts[node] = self._layouts(value)
            return
        self._rewrite(node, value)

    def _layouts(self, value: Any) -> Any:
        """Layouts of results that nothing padded has reached."""
        if isinstance(value, torch.Tensor):
            return self.order.layout(value.shape, self.bucketed)
        return [None if one is None else self._layouts(one) for one in value] if isinstance(value, (list, tuple)) else None

    def _touched(self, node: Node, tensors: list[torch.Tensor]) -> bool:
        symbols: set[str] = set().union(*(free_symbols(one) for one in tensors))
        for source in node.all_input_nodes:
            for value in values(source):
                symbols |= free_symbols(value)
        return bool(symbols & self.bucketed)

    def _rewrite(self, node: Node, value: Any) -> None:
        from torch_neuronx.compile.padding.rules import find

        op = node.target
        everywhere = [source for source in node.all_input_nodes if source in self.layouts and isinstance(self.layouts[source], tuple)]
        if not isinstance(op, torch._ops.OpOverload):
            raise self.refuse("it is no operator of ATen", *everywhere)
        if op._schema.is_mutable:
            raise self.refuse("it writes into its arguments", *everywhere)
        bound = bind(node)
        if (torch.Tag.nondeterministic_seeded in op.tags or op.namespace == "neuron") and bound.get("dropout_p") != 0:
            raise self.refuse("it draws random numbers, and how many depends on the size", *everywhere)
        self.made[node], layouts = find(op)(self, node, bound)
        self.layouts[node] = layouts
        for layout, tensor in zip(layouts if isinstance(layouts, list) else [layouts], _results(value), strict=True):
            right = tensor is None or (
                layout is not None
                and len(layout) == tensor.dim()
                and all(agrees(dim, size) for dim, size in zip(layout, tensor.shape, strict=True))
            )
            if not right:
                raise self.refuse(f"its result's sizes, {list(tensor.shape)}, do not follow from those of its arguments", *everywhere)


def _results(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def bind(node: Node) -> Bound:
    """The arguments of a call by name, with defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((one.name for one in schema), node.args, strict=False)) | dict(node.kwargs)
    return {one.name: given.get(one.name, one.default_value) for one in schema}


def number_text(value: Any) -> str:
    """An integer argument, or the node of one, as an expression of real sizes."""
    return text(value.meta["val"]) if isinstance(value, Node) else repr(value)


def _line(node: Node) -> str:
    """ " at model.py:12": the last line of the user's that led to a node."""
    found = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f" (at {found[-1][0].rsplit('/', 1)[-1]}:{found[-1][1]})" if found else ""
