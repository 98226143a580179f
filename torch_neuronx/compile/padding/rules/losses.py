"""Losses."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from torch_neuronx.compile.padding.layout import product
from torch_neuronx.compile.padding.padder import Bound, Padder, aten
from torch_neuronx.compile.padding.rules.table import (
    broadcast,
    exact,
    rule,
    tensors_of,
)


@rule("nll_loss_forward", "nll_loss_backward")
def nll_loss(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, target = args["self"], args["target"]
    layout = p.layout(source)
    exact(p, source, len(layout) - 1, "it looks up classes")
    if layout[:1] != p.layout(target):
        raise p.refuse("its operands are laid out differently", source, target)
    new = args | {"self": p.fill(source, 0), "target": p.fill(target, args["ignore_index"])}
    if "grad_output" in args:
        return p.emit(node.target, new), layout
    return p.emit(node.target, new), [layout[:1] if args["reduction"] == 0 else (), ()]


@rule("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss")
def loss(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    """Without reduction on padded sizes, then a sum or a mean of what is valid."""
    layout = broadcast(p, tensors_of(p, node))
    new = p.emit(node.target, args | {"reduction": 0})
    if args["reduction"] == 0:
        return new, layout
    padded = [i for i, dim in enumerate(layout) if p.is_padded(dim)]
    new = p.call(aten.sum.default, p.fill_new(new, layout, 0, padded))
    if args["reduction"] == 1:
        new = p.call(aten.div.Tensor, new, p.number(product(factor for dim in layout for factor in dim)))
    return new, ()


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward", "soft_margin_loss_backward")
def loss_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout = broadcast(p, tensors_of(p, node))
    if args["reduction"] != 1:
        return p.emit(node.target, args), layout
    new = p.emit(node.target, args | {"reduction": 2})  # that of the sum
    return p.call(aten.div.Tensor, new, p.number(product(factor for dim in layout for factor in dim))), layout
