"""ATen graphs in *plain form*: without views, so that they can be compared with windows of Adaptive Eager.

A window has no views: they are calls of the host, and what is left of them is how the operands of other calls lie. In plain form an operand
is a value as its call made it, or ``as_strided`` of one. Of an argument that a pattern looks at through a transposition the transposed
tensor is the operand, and a kernel gets it transposed back. Other views of arguments do not show: such patterns have no plain form.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.passes.utils.matcher_utils import InternalMatch


def plain_form(traced: GraphModule, inputs: Sequence[torch.Tensor]) -> GraphModule | None:
    """A traced pattern without views, all arguments in the order of the schema; None when it looks at an argument through a view that a
    window does not show, or gives one. ``gm.meta["permutations"]``: for each placeholder the dimensions of its operand, None for itself."""
    plain = _Plain(traced)
    with torch.no_grad():
        plain.run(*inputs)
    results = plain.made_graph.output_node().args[0]
    from_calls = all(node not in plain.arguments and node not in plain.views.values() for node in listed(results))
    if plain.hidden or not from_calls or len(plain.permutations) != len(plain.arguments):
        return None
    gm = GraphModule(traced, plain.made_graph)
    gm.meta["permutations"] = [plain.permutations[node] for node in plain.arguments]
    gm.graph.eliminate_dead_code()
    return gm


class _Plain(Interpreter):
    """Runs a traced pattern on tensors without data, and writes its graph without views."""

    def __init__(self, traced: GraphModule) -> None:
        super().__init__(traced, garbage_collect_values=False)
        self.made_graph = Graph()
        self.arguments: list[Node] = []
        self.permutations: dict[Node, tuple[int, ...] | None] = {}  # of arguments that are operands
        self.hidden = False
        self.views: dict[Any, Node] = {}
        self.made: dict[Node, Node] = {}  # of the traced graph -> of the plain one
        self.bases: dict[Node, tuple[Node, torch.Tensor]] = {}  # of the traced graph: whose memory, and what that is as made

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op == "placeholder":
            self.made[n] = self.made_graph.placeholder(n.name)
            self.arguments.append(self.made[n])
            self.bases[n] = (self.made[n], value)
        elif n.op == "output":
            self.made_graph.output(torch.fx.map_arg(n.args[0], self._operand))
        elif n.op == "get_attr":
            self.made[n] = self.made_graph.create_node("get_attr", n.target)
            self.bases[n] = (self.made[n], value)
        elif isinstance(n.target, torch._ops.OpOverload):
            self._call(n, value)
        else:  # an element of several results
            whole = n.args[0]
            assert isinstance(whole, Node)
            self.made[n] = self.made_graph.call_function(element, (self.made[whole], n.args[1]))
            self.bases[n] = (self.made[n], value)
        return value

    def _call(self, n: Node, value: Any) -> None:
        assert isinstance(n.target, torch._ops.OpOverload)
        self.hidden |= n.target._schema.is_mutable
        source = next((arg for arg in n.args if isinstance(arg, Node)), None)
        if isinstance(value, torch.Tensor) and source in self.bases and _same_memory(value, self.env[source]):
            self.bases[n] = self.bases[source]
            return
        arguments = torch.fx.map_arg(_all_arguments(n), self._operand)
        self.made[n] = self.made_graph.call_function(n.target, tuple(arguments))
        self.bases[n] = (self.made[n], value)

    def _operand(self, n: Node) -> Node:
        base, made = self.bases[n]
        value = self.env.get(n, made)
        if base in self.arguments:
            way = _permutation(value, made)
            self.hidden |= way is _HIDDEN or self.permutations.setdefault(base, way) != way
            return base
        if not isinstance(value, torch.Tensor) or (lies(value) == lies(made) and value.storage_offset() == made.storage_offset()):
            return base
        offset = value.storage_offset() - made.storage_offset()
        key = (base, str(lies(value)), offset)
        if key not in self.views:
            self.views[key] = self.made_graph.call_function(torch.ops.aten.as_strided.default, (base, *lies(value), offset))
        return self.views[key]


_HIDDEN: Any = ("a view that is no transposition",)


def _permutation(view: torch.Tensor, argument: torch.Tensor) -> Any:
    """The dimensions of ``argument`` in the order of ``view``; None when it is itself."""
    if lies(view) == lies(argument) and view.storage_offset() == argument.storage_offset():
        return None
    if view.dim() == argument.dim() <= 4 and view.dtype == argument.dtype:
        for way in itertools.permutations(range(view.dim())):
            if lies(argument.permute(way)) == lies(view):
                return way
    return _HIDDEN


def inverse(operand: torch.Tensor, way: tuple[int, ...] | None) -> torch.Tensor:
    """The argument of which ``operand`` is a permutation."""
    return operand if way is None else operand.permute([way.index(dim) for dim in range(len(way))])


def match_permutations(match: InternalMatch) -> list[tuple[int, ...] | None]:
    owner = match.anchors[0].graph.owning_module
    assert owner is not None
    given: list[tuple[int, ...] | None] = owner.meta["permutations"]
    return given


def arguments_of(match: InternalMatch, form: Any) -> list[Any]:
    """What the pattern's parameters are in a match."""
    values = [node.meta.get("val") if isinstance(node, Node) else node for node in match.placeholder_nodes]
    if form is None:
        return values
    ways = match_permutations(match)
    return [inverse(one, way) if isinstance(one, torch.Tensor) else one for one, way in zip(values, ways, strict=True)]


def _same_memory(a: Any, b: Any) -> bool:
    return isinstance(b, torch.Tensor) and a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _all_arguments(n: Node) -> list[Any]:
    given: Iterable[Any] = n.args
    assert isinstance(n.target, torch._ops.OpOverload)
    schema = n.target._schema.arguments
    values = dict(zip((argument.name for argument in schema), given, strict=False)) | dict(n.kwargs)
    return [values.get(argument.name, argument.default_value) for argument in schema]


def lies(tensor: torch.Tensor) -> tuple[list[int], list[int]]:
    return list(tensor.size()), list(tensor.stride())


def listed(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def element(values: Any, index: int) -> Any:
    return values[index]
