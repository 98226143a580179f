"""Elementwise operators, and tensors made of a number."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from torch_neuronx.compile.padding.layout import Refused, free_symbols
from torch_neuronx.compile.padding.padder import Bound, Padder, number_text
from torch_neuronx.compile.padding.rules.table import (
    broadcast,
    dtype,
    rule,
    shape,
    single,
    tensors_of,
)

_DIVISIONS = ("div", "floor_divide", "remainder", "fmod", "gcd", "lcm", "true_divide")


@rule("clone", "detach", "alias", "_to_copy", "contiguous", "lift_fresh", "lift_fresh_copy", "where", "masked_fill", "copy")
def pointwise(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    op, new = node.target, dict(args)
    nodes = tensors_of(p, node)
    for name, value in args.items():
        if isinstance(value, Node) and value not in p.layouts and free_symbols(value.meta["val"]) & p.bucketed:
            # A size that is used as a number has its real value.
            packet = op.overloadpacket  # type: ignore[union-attr]
            if name != "other" or "Tensor" not in packet.overloads():
                raise p.refuse(f"a size is its argument {name}", *nodes)
            op = packet.Tensor_mode if "rounding_mode" in args else packet.Tensor
            new[name] = _number(p, node, value)
        elif (
            name in ("other", "divisor")
            and isinstance(value, Node)
            and value in p.layouts
            and not dtype(value).is_floating_point
            and op._schema.name.removeprefix("aten::") in _DIVISIONS  # type: ignore[union-attr]
        ):
            new[name] = p.fill(value, 1)  # an integer division by zero is an error
    return p.emit(op, new), broadcast(p, nodes)


def _number(p: Padder, node: Node, value: Node) -> Any:
    """The real value of a size, or of what was computed from sizes, as a tensor that leaves the dtype of the result as it is."""
    if isinstance(value.meta["val"], torch.SymInt):
        return p.number(number_text(value))
    result = node.meta["val"]
    if p.made[value] not in p.floats or result.dtype == torch.float64 or (result.dim() == 0 and result.dtype != torch.float32):
        raise p.refuse("a number computed from sizes is its operand", *tensors_of(p, node))
    return p.made[value]


@rule("zeros_like", "ones_like", "full_like", "empty_like")
def like(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    return p.emit(node.target, args), p.layout(args["self"])


@rule("full", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
def filled(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    value = args.get("fill_value")
    if isinstance(value, Node) and free_symbols(value.meta["val"]) & p.bucketed:
        raise Refused(f"{node.target}: a size is the number that it fills with", free_symbols(value.meta["val"]))
    return p.emit(node.target, args), p.order.layout(shape(node), p.bucketed)


@rule("arange")
def arange(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout = p.order.layout(shape(node), p.bucketed)
    for name in ("start", "step"):
        if isinstance(args.get(name), Node):
            raise Refused(f"{node.target}: a size is its argument {name}", free_symbols(args[name].meta["val"]) & p.bucketed)
    if len(layout[0]) > 1:
        raise Refused(f"{node.target}: it counts rows of padded length", p.bucketed & {str(factor) for factor in layout[0]})
    return p.emit(node.target, args), layout


@rule("tril", "triu")
def triangle(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    rank = len(p.layout(args["self"]))
    for dim in (rank - 2, rank - 1):
        single(p, args["self"], dim, "it counts")
    return p.emit(node.target, args), p.layout(args["self"])
