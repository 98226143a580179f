"""Rows: independent along all dimensions but those that are named."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from torch_neuronx.compile.padding.layout import Layout
from torch_neuronx.compile.padding.padder import Bound, Padder
from torch_neuronx.compile.padding.rules.table import (
    broadcast,
    exact,
    lowest,
    rule,
    single,
    wrap,
)

_CAUSAL = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


@rule("sort", "topk", "kthvalue", "argsort", "median", "mode", "flip", "roll", "glu", *_CAUSAL)
def rows(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source, causal = args["self"], node.target._schema.name.removeprefix("aten::") in _CAUSAL  # type: ignore[union-attr]
    layout = p.layout(source)
    named = args["dims"] if "dims" in args else args.get("dim", None)
    if named is None or named == []:
        raise p.refuse("it works on all elements", source)
    dims = [wrap(dim, len(layout)) for dim in (named if isinstance(named, (list, tuple)) else [named])]
    for dim in dims:
        if not causal:
            exact(p, source, dim, "it works")
        else:
            single(p, source, dim, "it adds up")
    values = node.meta["val"]
    results = []
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if len(value.shape) < len(layout):
            results.append(tuple(dim for i, dim in enumerate(layout) if i not in dims))
        else:
            changed = [i for i in dims if not p.is_padded(layout[i])]
            results.append(tuple(p.order.dim(value.shape[i], p.bucketed) if i in changed else dim for i, dim in enumerate(layout)))
    return p.emit(node.target, args), results if isinstance(values, (list, tuple)) else results[0]


@rule("_softmax", "_log_softmax")
def softmax(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source = args["self"]
    dim = wrap(args["dim"], len(p.layout(source)))
    return p.emit(node.target, args | {"self": p.fill(source, lowest(source), [dim])}), p.layout(source)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    grad, output = args["grad_output"], args["output"]
    layout = broadcast(p, [grad, output])
    dims = [wrap(args["dim"], len(layout))]
    return p.emit(node.target, args | {"grad_output": p.fill(grad, 0, dims), "output": p.fill(output, 0, dims)}), layout


def _normalised(p: Padder, source: Node, count: int) -> tuple[Layout, Layout]:
    """Layouts of a tensor and of the statistics of its last ``count`` dimensions."""
    layout = p.layout(source)
    for dim in range(len(layout) - count, len(layout)):
        exact(p, source, dim, "it normalises")
    return layout, layout[: len(layout) - count] + ((),) * count


@rule("native_layer_norm", "_fused_rms_norm")
def layer_norm(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    layout, statistics = _normalised(p, args["input"], len(args["normalized_shape"]))
    return p.emit(node.target, args), [layout] + [statistics] * (len(node.meta["val"]) - 1)


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def layer_norm_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    source = args["input"]
    layout, _ = _normalised(p, source, len(args["normalized_shape"]))
    # Gradients of weight and bias are sums over rows.
    clean = {name: p.fill(value, 0) for name, value in args.items() if isinstance(value, Node) and name not in ("weight", "bias")}
    parameters = [None if one is None else p.order.layout(one.shape, p.bucketed) for one in node.meta["val"][1:]]
    return p.emit(node.target, args | clean), [layout if node.meta["val"][0] is not None else None, *parameters]
