"""Views and what moves elements."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from torch_neuronx.compile.padding.layout import Dim, Refused, free_symbols, normal, product, regroup
from torch_neuronx.compile.padding.padder import Bound, Padder, aten
from torch_neuronx.compile.padding.rules.table import (
    exact,
    rule,
    shape,
    single,
    wrap,
    zero,
)


@rule("view", "_unsafe_view", "reshape", "_reshape_copy", "view_copy", "unsqueeze", "squeeze")
def view(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    op = aten.reshape.default if node.target in (aten.view.default, aten._unsafe_view.default) else node.target
    bound = {"self": args["self"], "shape": args["size"]} if op is aten.reshape.default and "size" in args else args
    layout = regroup(p.layout(args["self"]), shape(node), p.bucketed)
    if node.target is aten.view.dtype:
        raise p.refuse("it changes the dtype of memory", args["self"])
    new = p.emit(op, bound)
    kept = p.filled.get(p.made[args["self"]], {})
    if kept and len(set(kept.values())) == 1 and len(kept) == len(p.dims(args["self"])):
        p.filled[new] = dict.fromkeys((i for i, dim in enumerate(layout) if p.is_padded(dim)), next(iter(kept.values())))
    return new, layout


@rule("permute", "transpose", "t", "numpy_T", "mT")
def permute(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout, rank = p.layout(args["self"]), len(p.layout(args["self"]))
    if "dims" in args:
        order = [wrap(dim, rank) for dim in args["dims"]]
    else:
        a, b = (wrap(args.get("dim0", -1), rank), wrap(args.get("dim1", -2), rank)) if rank > 1 else (0, 0)
        order = list(range(rank))
        if rank:
            order[a], order[b] = order[b], order[a]
    new, kept = p.emit(node.target, args), p.filled.get(p.made[args["self"]], {})
    p.filled[new] = {place: kept[dim] for place, dim in enumerate(order) if dim in kept}
    return new, tuple(layout[dim] for dim in order)


@rule("expand")
def expand(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    old, sizes = p.layout(args["self"]), shape(node)
    added = len(sizes) - len(old)
    layout = list(p.order.layout(sizes, p.bucketed))
    for i, dim in enumerate(old):
        if dim:
            layout[added + i] = dim
    return p.emit(node.target, args), tuple(layout)


@rule("select")
def select(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, index = args["self"], args["index"]
    layout = p.layout(source)
    dim = wrap(args["dim"], len(layout))
    rest = layout[:dim] + layout[dim + 1 :]
    if not p.is_padded(layout[dim]):
        return p.emit(node.target, args), rest
    single(p, source, dim, "it counts")
    if not isinstance(index, int):
        raise p.refuse("a size is its argument index", source)
    if index >= 0:
        return p.emit(node.target, args), rest
    at = p.call(aten.add.Tensor, p.call(aten.full.default, [1], index, dtype=torch.int64, device=p.device), p.number(product(layout[dim])))
    return p.call(aten.squeeze.dim, p.call(aten.index_select.default, p.made[source], dim, at), dim), rest


@rule("slice")
def slice_(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout, sizes = list(p.layout(args["self"])), shape(node)
    dim = wrap(args["dim"], len(layout))
    start, old = args["start"] or 0, shape(args["self"])[dim]
    whole = str(old) == str(sizes[dim])
    if whole and isinstance(start, int) and start <= 0 and args["step"] == 1:
        new = p.made[args["self"]]  # all of it, whatever the end is called
        return p.call(aten.alias.default, new), tuple(layout)
    touched = free_symbols(sizes[dim]) & p.bucketed
    if (not isinstance(start, int) or start < 0 or args["step"] != 1) and (touched or p.is_padded(layout[dim])):
        raise p.refuse("it takes a part that depends on a padded size", args["self"])
    if touched and p.is_padded(layout[dim]):
        raise p.refuse("it takes a part of a padded dimension", args["self"])
    if touched:
        layout[dim] = _first_of(p, node, old, sizes[dim], start)
    elif p.is_padded(layout[dim]):
        single(p, args["self"], dim, "it counts")
        if isinstance(args["end"], Node) or args["end"] is None or args["end"] < 0:
            raise p.refuse("it takes a part of a padded dimension that depends on its end", args["self"])
        layout[dim] = p.order.dim(sizes[dim], p.bucketed)
    else:
        layout[dim] = p.order.dim(sizes[dim], p.bucketed)
    return p.emit(node.target, args), tuple(layout)


def _first_of(p: Padder, node: Node, whole: Any, part: Any, start: Any) -> Dim:
    """The first ``part`` elements of a dimension that is not padded: the bucket must not be larger than ``whole``."""
    dim = p.order.dim(part, p.bucketed)
    if len(dim) != 1 or start != 0 or not isinstance(whole, int):
        raise Refused(f"{node.target}: it takes a part whose size is {part}", free_symbols(part) & p.bucketed)
    name = str(dim[0])
    p.limits[name] = min(whole, p.limits.get(name, whole))
    return dim


@rule("slice_backward")
def slice_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    grad, sizes = args["grad_output"], shape(node)
    layout = list(p.layout(grad))
    dim = wrap(args["dim"], len(layout))
    if str(shape(grad)[dim]) == str(sizes[dim]):
        return p.emit(aten.alias.default, {"self": grad}), tuple(layout)
    if (args["step"] != 1 or args["start"] != 0) and (p.is_padded(layout[dim]) or free_symbols(sizes[dim]) & p.bucketed):
        raise p.refuse("it is the gradient of a part that depends on a padded size", grad)
    if p.is_padded(layout[dim]):
        if _first_of(p, node, sizes[dim], shape(grad)[dim], args["start"]) != layout[dim]:
            raise p.refuse("it is the gradient of a part that is laid out differently", grad)
        new = p.fill(grad, zero(grad), [dim])
        layout[dim] = p.order.dim(sizes[dim], p.bucketed)
        return p.emit(node.target, args | {"grad_output": new}), tuple(layout)
    layout[dim] = p.order.dim(sizes[dim], p.bucketed)
    if len(layout[dim]) > 1:
        raise p.refuse("it is the gradient of a part of rows of padded length", grad)
    return p.emit(node.target, args), tuple(layout)


@rule("select_backward")
def select_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout, sizes = list(p.layout(args["grad_output"])), shape(node)
    dim = wrap(args["dim"], len(sizes))
    layout.insert(dim, p.order.dim(sizes[dim], p.bucketed))
    if p.is_padded(layout[dim]) and (len(layout[dim]) > 1 or not isinstance(args["index"], int) or args["index"] < 0):
        raise p.refuse("it counts from the end of a padded dimension", args["grad_output"])
    return p.emit(node.target, args), tuple(layout)


@rule("cat", "stack")
def join(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    nodes = list(args["tensors"])
    stacks = "stack" in str(node.target)
    rank = len(shape(node))
    dim = wrap(args["dim"], rank)
    layouts = [list(p.layout(one)) for one in nodes]
    for one, layout in zip(nodes, layouts, strict=True):
        if not stacks:
            exact(p, one, dim, "it joins")
            layout[dim] = p.order.dim(shape(node)[dim], p.bucketed)
        else:
            layout.insert(dim, normal([len(nodes)]))
    if any(layout != layouts[0] for layout in layouts):
        raise p.refuse("its operands are laid out differently", *nodes)
    return p.emit(node.target, args), tuple(layouts[0])


@rule("split", "split_with_sizes", "unbind", "chunk")
def split(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout = list(p.layout(args["self"]))
    dim = wrap(args["dim"], len(layout))
    exact(p, args["self"], dim, "it splits")
    results = []
    for one in node.meta["val"]:
        part = list(layout)
        if len(one.shape) < len(layout):
            del part[dim]
        else:
            part[dim] = p.order.dim(one.shape[dim], p.bucketed)
        results.append(tuple(part))
    return p.emit(node.target, args), results
