"""Computes with many numbers in host memory at a time.

An optimizer keeps a step count for each parameter as a 0-dim CPU tensor, and ten ``_foreach_`` calls turn the counts into factors: on a CPU
that is a kernel for each number and call, 1.6 us each, a thousand of them for a hundred parameters. Here a call becomes one kernel on all
numbers, stacked. Only for operations whose results are exactly rounded: those are the same in a vector and alone. ``pow`` is not, so its
numbers are taken apart before and put together after.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

aten = torch.ops.aten

_EXACT = {
    aten._foreach_add.Scalar: aten.add.Scalar,
    aten._foreach_sub.Scalar: aten.sub.Scalar,
    aten._foreach_mul.Scalar: aten.mul.Scalar,
    aten._foreach_div.Scalar: aten.div.Scalar,
    aten._foreach_neg.default: aten.neg.default,
    aten._foreach_reciprocal.default: aten.reciprocal.default,
    aten._foreach_sqrt.default: aten.sqrt.default,
}
_FEWEST = 4  # numbers; stacking fewer costs what it saves


def join(gm: GraphModule) -> int:
    """Rewrites ``gm``; gives the number of calls that were joined."""
    graph = gm.graph
    stacks: dict[tuple[Node, ...], Node] = {}  # by the numbers that they hold
    made: list[Node] = []
    joined = 0
    for node in list(graph.nodes):
        if node.target not in _EXACT or not _is_of_host_scalars(node):
            continue
        numbers = tuple(node.args[0])
        with graph.inserting_before(node):
            stack = stacks.get(numbers)
            if stack is None:
                made.append(stack := _call(graph, aten.stack.default, list(numbers)))
            result = _call(graph, _EXACT[node.target], stack, *node.args[1:])
            parts = _call(graph, aten.unbind.int, result)
            items = tuple(_call(graph, operator.getitem, parts, i) for i in range(len(numbers)))
        made += (result, parts, *items)
        for user in list(node.users):
            user.replace_all_uses_with(items[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        stacks[items] = result
        joined += 1
    for node in reversed(made):
        if not node.users:
            graph.erase_node(node)
    return joined


def _is_of_host_scalars(node: Node) -> bool:
    """Whether it is a call on 0-dim CPU tensors of one real type, none of whose results leaves the graph: those share a storage here."""
    values = [number.meta["val"] for number in node.args[0]]  # type: ignore[union-attr]
    return (
        len(values) >= _FEWEST
        and all(value.device.type == "cpu" and value.dim() == 0 for value in values)
        and {value.dtype for value in values} <= {torch.float32, torch.float64}
        and len({value.dtype for value in values}) == 1
        and not node.kwargs
        and all(user.target is operator.getitem and all(reader.op != "output" for reader in user.users) for user in node.users)
    )


def _call(graph: Graph, target: Any, *args: Any) -> Node:
    node = graph.call_function(target, args)
    node.meta["val"] = target(*map_arg(args, lambda one: one.meta["val"]))
    return node
