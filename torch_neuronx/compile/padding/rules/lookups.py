"""Rows that are looked up."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from torch_neuronx.compile.padding.padder import Bound, Padder
from torch_neuronx.compile.padding.rules.table import (
    dtype,
    exact,
    rule,
    shape,
    single,
    tensors_of,
    wrap,
    zero,
)


@rule("embedding")
def embedding(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    weight, indices = args["weight"], args["indices"]
    exact(p, weight, 0, "it looks up rows")
    return p.emit(node.target, args | {"indices": p.fill(indices, 0)}), p.layout(indices) + p.layout(weight)[1:]


@rule("embedding_dense_backward")
def embedding_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    grad, indices = args["grad_output"], args["indices"]
    if args["scale_grad_by_freq"]:
        raise p.refuse("scale_grad_by_freq counts the indices", indices)
    new = args | {"grad_output": p.fill(grad, 0, range(len(p.layout(indices)))), "indices": p.fill(indices, 0)}
    return p.emit(node.target, new), p.order.layout(shape(node)[:1], p.bucketed) + p.layout(grad)[len(p.layout(indices)) :]


@rule("index_select")
def index_select(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout = list(p.layout(args["self"]))
    dim = wrap(args["dim"], len(layout))
    single(p, args["self"], dim, "it looks up positions")
    (layout[dim],) = p.layout(args["index"]) or ((),)
    return p.emit(node.target, args | {"index": p.fill(args["index"], 0)}), tuple(layout)


@rule("index")
def index(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, indices = args["self"], list(args["indices"])
    layout = p.layout(source)
    given = [place for place, one in enumerate(indices) if one is not None]
    if len(given) != 1 or dtype(indices[given[0]]) == torch.bool:
        raise p.refuse("with more than one index", *tensors_of(p, node))
    (dim,) = given
    single(p, source, dim, "it looks up positions")
    if p.is_padded(layout[dim]):
        raise p.refuse("negative indices count from the end of a padded dimension", source)
    new = [one if one is None else p.fill(one, 0) for one in indices]
    return p.emit(node.target, args | {"indices": new}), layout[:dim] + p.layout(indices[dim]) + layout[dim + 1 :]


@rule("index_put")
def index_put(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, indices, values = args["self"], list(args["indices"]), args["values"]
    layout = p.layout(source)
    given = [place for place, one in enumerate(indices) if one is not None]
    if len(given) != 1 or dtype(indices[given[0]]) == torch.bool or not args["accumulate"]:
        raise p.refuse("it writes, with more than one index or without adding up", *tensors_of(p, node))
    (dim,) = given
    exact(p, source, dim, "it adds to rows")
    wanted = layout[:dim] + p.layout(indices[dim]) + layout[dim + 1 :]
    if p.layout(values) != wanted:
        raise p.refuse("its operands are laid out differently", *tensors_of(p, node))
    new = [one if one is None else p.fill(one, 0) for one in indices]
    over = range(dim, dim + len(p.layout(indices[dim])))
    return p.emit(node.target, args | {"indices": new, "values": p.fill(values, zero(values), over)}), layout


@rule("gather", "scatter_add")
def gather(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, positions = args["self"], args["index"]
    layout, other = p.layout(source), p.layout(positions)
    dim = wrap(args["dim"], max(len(layout), 1))
    exact(p, source, dim, "it looks up positions")
    if any(a != b for i, (a, b) in enumerate(zip(layout, other, strict=True)) if i != dim and (p.is_padded(a) or p.is_padded(b))):
        raise p.refuse("its operands are laid out differently", source, positions)
    new = args | {"index": p.fill(positions, 0)}
    if "src" not in args:
        return p.emit(node.target, new), other
    if p.layout(args["src"]) != other:
        raise p.refuse("its operands are laid out differently", source, positions)
    return p.emit(node.target, new | {"src": p.fill(args["src"], zero(args["src"]))}), layout
