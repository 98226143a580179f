"""Batches: only the first dimension is padded, and each of its elements is on its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from torch_neuronx.compile.padding.layout import Dim, Layout, free_symbols
from torch_neuronx.compile.padding.padder import Bound, Padder
from torch_neuronx.compile.padding.rules.table import (
    exact,
    rule,
    tensors_of,
)


@rule(
    "convolution", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool1d", "avg_pool2d", "avg_pool2d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d", "upsample_nearest2d", "upsample_bilinear2d",
    "upsample_nearest1d", "native_group_norm", "_native_batch_norm_legit_no_training", "pixel_shuffle", "im2col", "col2im",
)  # fmt: skip
def batches(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    first = _batch(p, tensors_of(p, node))
    values = node.meta["val"]
    results = [None if one is None else _batch_layout(p, one, first) for one in (values if isinstance(values, (list, tuple)) else [values])]
    return p.emit(node.target, args), results if isinstance(values, (list, tuple)) else results[0]


@rule("convolution_backward")
def convolution_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    grad, source = args["grad_output"], args["input"]
    exact(p, args["weight"], 0, "it has filters")
    first = _batch(p, [grad, source])
    clean = {"grad_output": p.fill(grad, 0), "input": p.fill(source, 0)}  # gradients of weights are sums over the batch
    results = [None if one is None else p.order.layout(one.shape, p.bucketed) for one in node.meta["val"]]
    if results[0] is not None:
        results[0] = _batch_layout(p, node.meta["val"][0], first)
    return p.emit(node.target, args | clean), results


def _batch(p: Padder, nodes: list[Node]) -> Dim:
    """The first dimension of those that are padded."""
    padded = [one for one in nodes if p.dims(one)]
    found = {p.layout(one)[0] for one in padded}
    for one in padded:
        for dim in p.dims(one):
            if dim:
                exact(p, one, dim, "it works")
    if len(found) > 1:
        raise p.refuse("its operands are laid out differently", *padded)
    return next(iter(found), ())


def _batch_layout(p: Padder, value: torch.Tensor, first: Dim) -> Layout:
    layout = list(p.order.layout(value.shape, p.bucketed))
    if layout and first and (layout[0] == first or free_symbols(value.shape[0])):
        layout[0] = first
    return tuple(layout)
