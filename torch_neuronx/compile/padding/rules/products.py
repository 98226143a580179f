"""Matrix products and attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from torch_neuronx.compile.padding.layout import Layout, product
from torch_neuronx.compile.padding.padder import Bound, Padder, aten
from torch_neuronx.compile.padding.rules.table import (
    dtype,
    exact,
    lowest,
    rule,
    single,
)


@rule("mm", "bmm", "mv", "dot")
def product_of(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    a, b = args["self"], next(args[name] for name in ("mat2", "vec", "tensor") if name in args)
    new, layout = _contracted(p, a, b)
    return p.emit(node.target, dict(zip(args, new, strict=True))), layout


@rule("addmm", "baddbmm", "addmv")
def sum_and_product(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    names = [name for name in args if name not in ("self", "beta", "alpha")]
    new, layout = _contracted(p, args[names[0]], args[names[1]])
    for mine, whole in zip(reversed(p.layout(args["self"])), reversed(layout), strict=False):
        if mine and mine != whole:
            raise p.refuse("its operands are laid out differently", *(args[name] for name in ("self", *names)))
    return p.emit(node.target, args | dict(zip(names, new, strict=True))), layout


def _contracted(p: Padder, a: Node, b: Node) -> tuple[tuple[Node, Node], Layout]:
    left, right = p.layout(a), p.layout(b)
    inner = len(right) - (2 if len(right) > 1 else 1)
    if left[-1] != right[inner] or (len(left) == 3 and left[0] != right[0]):
        raise p.refuse(f"its operands are laid out differently, {product(left[-1])} and {product(right[inner])}", a, b)
    new = p.made[a], p.made[b]
    if p.is_padded(left[-1]):  # both, for 0 * inf is no 0
        new = p.fill(a, 0, [len(left) - 1]), p.fill(b, 0, [inner])
    return new, left[:-1] + right[inner + 1 :]


@rule("_scaled_dot_product_flash_attention_for_cpu")
def attention(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    query, value = p.layout(args["query"]), p.layout(args["value"])
    _check_heads(p, args)
    clean = {"key": p.fill(args["key"], 0, [2]), "value": p.fill(args["value"], 0, [2]), "attn_mask": _key_mask(p, args)}
    return p.emit(node.target, args | clean), [query[:3] + value[3:], query[:3]]


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(p: Padder, node: Node, args: Bound) -> tuple[Node, Any]:
    _check_heads(p, args)
    # A row of the padding has no gradient, and finite everything else: then it adds nothing to the gradients of keys and values.
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    clean: Bound = {name: p.fill(args[name], 0, [2]) for name in names}
    layouts = [p.layout(args[name]) for name in ("query", "key", "value")]
    return p.emit(node.target, args | clean | {"attn_mask": _key_mask(p, args)}), layouts


def _check_heads(p: Padder, args: Bound) -> None:
    nodes = [args[name] for name in ("query", "key", "value")]
    for one in nodes:
        exact(p, one, 3, "it adds up products")
        single(p, one, 2, "it attends")
    layouts = [p.layout(one) for one in nodes]
    if any(layout[:2] != layouts[0][:2] for layout in layouts) or layouts[1][2] != layouts[2][2]:
        raise p.refuse("its operands are laid out differently", *nodes)
    if args["is_causal"] and layouts[0][2] != layouts[1][2]:
        raise p.refuse("causal, of queries and keys of different lengths", *nodes)


def _key_mask(p: Padder, args: Bound) -> Any:
    """The mask that keeps queries from padded keys. Causal attention needs none: no query looks at what comes after it."""
    mask, query, key = args["attn_mask"], p.layout(args["query"]), p.layout(args["key"])
    if mask is not None:
        layout = p.layout(mask)
        if p.is_padded(key[2]) and layout[-1] != key[2] and not args["is_causal"]:
            raise p.refuse("its mask does not cover the keys one by one", mask, args["key"])
        # Its own padding is looked at by rows of the padding, which must not be NaN where the backward pass multiplies by zero.
        rank = len(layout)
        cleared = p.fill_new(p.made[mask], layout, 0 if dtype(mask) != torch.bool else True, [rank - 2] if rank > 1 else [])
        return p.fill_new(cleared, layout, lowest(mask), [rank - 1])
    if args["is_causal"] or not p.is_padded(key[2]):
        return None
    zeros = p.call(aten.full.default, [p.size(query[2]), p.size(key[2])], 0, dtype=dtype(args["query"]), device=p.device)
    return p.fill_new(zeros, (query[2], key[2]), -float("inf"), [1])
