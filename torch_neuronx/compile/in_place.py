"""Lets a write into an input, such as a KV cache, be a write again.

AOTAutograd makes every graph functional: ``cache.index_copy_(2, place, k)`` becomes a copy of the whole cache with ``k`` in it, and a
``copy_`` of that into ``cache`` at the end. Where nothing needs the old values afterwards, this pass puts the call on the input itself and
takes the ``copy_`` away. Pointwise updates stay as they are: fused with their ``copy_``, they never write the temporary.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten

# Overloads that give their first argument with some elements replaced, and those that replace them in it.
_IN_PLACE = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
}

# Likewise for a view: the view of the first argument is written.
_VIEWS = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}


def restore(gm: GraphModule) -> int:
    """Rewrites ``gm``; gives the number of ``copy_`` that it took away."""
    graph = gm.graph
    removed = 0
    for copy in graph.find_nodes(op="call_function", target=aten.copy_.default):
        place = {node: i for i, node in enumerate(graph.nodes)}
        chain = _chain(copy, place)
        if chain:
            _rewrite(graph, copy, chain)
            removed += 1
    return removed


def _chain(copy: Node, place: dict[Node, int]) -> list[Node]:
    """The updates that lead from the input that ``copy`` writes to what it writes there, first one first; empty when they must stay."""
    target, source = copy.args[0], copy.args[1]
    if not isinstance(target, Node) or target.op != "placeholder":
        return []
    chain: list[Node] = []
    while isinstance(source, Node) and source is not target:
        if source.target not in _IN_PLACE and source.target not in _VIEWS:
            return []
        chain.insert(0, source)
        source = source.args[0]
    if source is not target or not _same(copy, target, chain):
        return []
    output = next(iter(reversed(place)))
    for update in chain:
        before = update.args[0]
        assert isinstance(before, Node)
        reads_itself = any(_shows(other, before) for other in update.args[1:])
        if output in update.users or reads_itself or _is_needed_after(before, place[update], place, ignored={copy, update}):
            return []
    return chain


def _same(copy: Node, target: Node, chain: list[Node]) -> bool:
    """The values have the input's dtype and sizes, and the input's elements do not overlap, so ``copy_`` only moves bytes."""
    values = [node.meta.get("val") for node in (target, *chain)]
    first = values[0]
    return (
        len(copy.args) == 2
        and isinstance(first, torch.Tensor)
        and all(isinstance(value, torch.Tensor) and value.dtype == first.dtype and value.shape == first.shape for value in values)
        and 0 not in [stride for stride, size in zip(first.stride(), first.shape, strict=True) if size != 1]
    )


def _is_view(node: Node) -> bool:
    """True when ``node`` may show the memory of what it reads."""
    if node.target is operator.getitem:
        return True
    return not isinstance(node.target, torch._ops.OpOverload) or any(
        result.alias_info is not None for result in node.target._schema.returns
    )


def _is_needed_after(node: Node, moment: int, place: dict[Node, int], ignored: set[Node]) -> bool:
    """True when ``node``, or a view of it, is read later than ``moment``."""
    for user in node.users:
        if user in ignored:
            continue
        if place[user] > moment or (_is_view(user) and _is_needed_after(user, moment, place, ignored)):
            return True
    return False


def _shows(value: object, node: Node) -> bool:
    """True when an argument may be a view of ``node``."""
    found: list[Node] = []
    torch.fx.map_arg(value, found.append)  # type: ignore[type-var]
    while found:
        one = found.pop()
        if one is node:
            return True
        if one.op == "call_function" and _is_view(one):
            found.extend(one.all_input_nodes)
    return False


def _rewrite(graph: Graph, copy: Node, chain: list[Node]) -> None:
    for update in chain:
        if update.target in _IN_PLACE:
            update.target = _IN_PLACE[update.target]
            continue
        before, value, *where = update.args
        with graph.inserting_before(update):
            slicing = _VIEWS[update.target]  # type: ignore[index]
            view = graph.call_function(slicing, (before, *where), dict(update.kwargs))
            view.meta["val"] = value.meta["val"] if isinstance(value, Node) else None
            written = graph.call_function(aten.copy_.default, (view, value))
            written.meta["val"] = view.meta["val"]
        update.replace_all_uses_with(before)  # type: ignore[arg-type]
        graph.erase_node(update)
    copy.replace_all_uses_with(copy.args[0])  # type: ignore[arg-type]
    graph.erase_node(copy)
