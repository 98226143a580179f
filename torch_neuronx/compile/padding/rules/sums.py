"""Sums and their like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from torch_neuronx.compile.padding.layout import product
from torch_neuronx.compile.padding.padder import Bound, Padder, aten
from torch_neuronx.compile.padding.rules.elementwise import pointwise
from torch_neuronx.compile.padding.rules.table import (
    dtype,
    exact,
    highest,
    lowest,
    rule,
    single,
    wrap,
    zero,
)

# What changes nothing where it stands in the padding.
_NEUTRAL: dict[str, Callable[[Node], Any]] = {
    "sum": zero,
    "nansum": zero,
    "prod": lambda node: True if dtype(node) == torch.bool else 1,
    "any": zero,
    "all": lambda node: True if dtype(node) == torch.bool else 1,
    "amax": lowest,
    "amin": highest,
    "max": lowest,
    "min": highest,
    "argmax": lowest,
    "argmin": highest,
    "logsumexp": lowest,
    "linalg_vector_norm": zero,
    "mean": zero,
}


@rule(*_NEUTRAL)
def reduction(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, name = args["self"], node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
    if "other" in args:  # max and min of two tensors
        return pointwise(p, node, args)
    layout = p.layout(source)
    named = args.get("dim")
    dims = list(range(len(layout))) if named is None or named == [] else named if isinstance(named, (list, tuple)) else [named]
    dims = sorted({wrap(dim, len(layout)) for dim in dims})
    padded = [dim for dim in dims if p.is_padded(layout[dim])]
    values = node.meta["val"]
    if name in ("argmax", "argmin") or isinstance(values, (list, tuple)):
        if padded and named is None and len(layout) > 1:
            raise p.refuse("it gives a position among all elements", source)
        for dim in padded:
            single(p, source, dim, "it gives a position")
    if name == "linalg_vector_norm" and padded and not args["ord"] > 0:
        raise p.refuse(f"of order {args['ord']}, it has no neutral padding", source)
    if name in ("max", "min") and not isinstance(values, (list, tuple)):
        node_args: Bound = {"self": p.fill(source, _NEUTRAL[name](source), padded)}
    else:
        node_args = args | {"self": p.fill(source, _NEUTRAL[name](source), padded)}
    kept = tuple(() if i in dims else dim for i, dim in enumerate(layout))
    one = values[0] if isinstance(values, (list, tuple)) else values
    result = kept if len(one.shape) == len(layout) else tuple(dim for i, dim in enumerate(layout) if i not in dims)
    if name == "mean" and padded:
        new = p.call(aten.sum.dim_IntList, node_args["self"], dims, len(one.shape) == len(layout), dtype=args.get("dtype"))
        new = p.call(aten.div.Tensor, new, p.number(product(factor for dim in dims for factor in layout[dim])))
        return new, result
    return p.emit(node.target, node_args), [result] * len(values) if isinstance(values, (list, tuple)) else result


@rule("var", "std", "var_mean", "std_mean")
def variance(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source = args["self"]
    layout = p.layout(source)
    dims = {wrap(dim, len(layout)) for dim in (args.get("dim") or range(len(layout)))}
    for dim in sorted(dims):
        exact(p, source, dim, "it works")
    result = tuple(() if i in dims else dim for i, dim in enumerate(layout))
    result = result if args.get("keepdim") else tuple(dim for i, dim in enumerate(layout) if i not in dims)
    values = node.meta["val"]
    return p.emit(node.target, args), [result] * len(values) if isinstance(values, (list, tuple)) else result
