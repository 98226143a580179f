"""Puts the gradients of a tensor's parts together in one go.

``q, k, v = qkv.unbind()`` and ``a, b = x[..., :n], x[..., n:]`` have as their gradient a sum of tensors that are zero but for one part:
each is filled and copied in full. Where the parts are all of the tensor, no two of them the same, that sum is their concatenation plus zero
(which only makes 0 of -0, as the sum does). Where the concatenation would have other strides, as that of channels-last parts, the sum
stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten
_PARTS = (aten.select_backward.default, aten.slice_backward.default)

Range = tuple[int, int]


def join(gm: GraphModule) -> int:
    """Rewrites ``gm``; gives the number of sums that became concatenations."""
    joined = 0
    for node in reversed(gm.graph.find_nodes(op="call_function", target=aten.add.Tensor)):
        if all(_is_plain_sum(user) for user in node.users):
            continue  # a part of a larger sum, or unused
        leaves = _in_order(_leaves(node))
        if leaves and _has_its_strides(node, leaves):
            _rewrite(gm.graph, node, leaves)
            joined += 1
    return joined


def _is_plain_sum(node: Node) -> bool:
    return node.target is aten.add.Tensor and not node.kwargs


def _leaves(node: Node) -> list[Node]:
    """What the tree of additions under ``node`` adds up; empty when something else wants a sum in between."""
    if not _is_plain_sum(node):
        return []
    leaves: list[Node] = []
    for term in node.args:
        if not isinstance(term, Node) or term is node.args[1 - node.args.index(term)] or len(term.users) != 1:
            return []
        if term.target in _PARTS:
            leaves.append(term)
            continue
        below = _leaves(term)
        if not below:
            return []
        leaves += below
    return leaves


def _in_order(leaves: list[Node]) -> list[Node]:
    """The leaves in the order in which they fill the dimension; empty unless they fill it exactly."""
    if not leaves:
        return []
    first = leaves[0]
    if not all(leaf.target is first.target and _dim(leaf) == _dim(first) and _alike(leaf, first) for leaf in leaves):
        return []
    ranges: dict[Range, Node] = {}
    size = first.meta["val"].shape[_dim(first)]
    for leaf in leaves:
        found = _range(leaf, size)
        if found is None or found in ranges:
            return []
        ranges[found] = leaf
    ordered = sorted(ranges)
    edges = [0, *(last for _, last in ordered)]
    if [start for start, _ in ordered] != edges[:-1] or edges[-1] != size:
        return []
    return [ranges[one] for one in ordered]


def _alike(one: Node, other: Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    same = a.dim() == b.dim() and all(statically_known_true(x == y) for x, y in zip(a.shape, b.shape, strict=True))
    return same and (a.dtype, a.device) == (b.dtype, b.device)


def _dim(leaf: Node) -> int:
    dim: int = leaf.args[2]  # type: ignore[assignment]
    return dim % leaf.meta["val"].dim()


def _range(leaf: Node, size: object) -> Range | None:
    """Of the elements that a leaf fills; None when it is not known, or empty, or has gaps."""
    numbers = [number for number in leaf.args[3:] if isinstance(number, int)]
    if not isinstance(size, int) or len(numbers) != len(leaf.args[3:]):
        return None
    if leaf.target is aten.select_backward.default:
        return numbers[0] % size, numbers[0] % size + 1
    first, last, step = slice(numbers[0], numbers[1]).indices(size)
    return (first, last) if numbers[2] == step == 1 and first < last else None


def _joining(leaf: Node) -> Callable[..., Any]:
    return aten.stack.default if leaf.target is aten.select_backward.default else aten.cat.default


def _has_its_strides(total: Node, leaves: list[Node]) -> bool:
    """True when the concatenation lies in memory as the sum does: what follows in the graph was traced for that."""
    parts = [leaf.args[0].meta["val"] for leaf in leaves]  # type: ignore[union-attr]
    joined = _joining(leaves[0])(parts, _dim(leaves[0]))
    return all(statically_known_true(a == b) for a, b in zip(joined.stride(), total.meta["val"].stride(), strict=True))


def _rewrite(graph: Graph, total: Node, leaves: list[Node]) -> None:
    with graph.inserting_before(total):
        parts = graph.call_function(_joining(leaves[0]), ([leaf.args[0] for leaf in leaves], _dim(leaves[0])))
        made = graph.call_function(aten.add.Tensor, (parts, 0))
    parts.meta["val"] = made.meta["val"] = total.meta["val"]
    total.replace_all_uses_with(made)
    _erase(graph, total)


def _erase(graph: Graph, node: Node) -> None:
    """``node`` and the terms that it alone used."""
    terms = [term for term in node.args if isinstance(term, Node)] if _is_plain_sum(node) else []
    graph.erase_node(node)
    for term in terms:
        _erase(graph, term)
