"""The table ``name of an operator -> rule`` and what rules ask of nodes and their layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from torch_neuronx.compile.padding.layout import Dim, Layout, Refused, product, symbols_of
from torch_neuronx.compile.padding.padder import Bound, Padder

Rule = Callable[[Padder, Node, Bound], tuple[Node, Any]]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def shape(node: Node) -> torch.Size:
    return node.meta["val"].shape


def dtype(node: Node) -> torch.dtype:
    return node.meta["val"].dtype


def wrap(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def zero(node: Node) -> Any:
    return False if dtype(node) == torch.bool else 0


def lowest(node: Node) -> Any:
    kind = dtype(node)
    return False if kind == torch.bool else -float("inf") if kind.is_floating_point else torch.iinfo(kind).min


def highest(node: Node) -> Any:
    kind = dtype(node)
    return True if kind == torch.bool else float("inf") if kind.is_floating_point else torch.iinfo(kind).max


def tensors_of(p: Padder, node: Node) -> list[Node]:
    return [source for source in node.all_input_nodes if isinstance(p.layouts.get(source), tuple)]


def single(p: Padder, node: Node, dim: int, what: str) -> None:
    """Positions along a padded dimension are the real ones only where it is not several rows."""
    if len(p.layout(node)[dim]) > 1 and p.is_padded(p.layout(node)[dim]):
        raise Refused(f"{what} along rows of padded length, {product(p.layout(node)[dim])}", symbols_of([p.layout(node)[dim]]) & p.bucketed)


def exact(p: Padder, node: Node, dim: int, what: str) -> None:
    if p.is_padded(p.layout(node)[dim]):
        raise Refused(f"{what} along dimension {dim}, which would be padded", symbols_of([p.layout(node)[dim]]) & p.bucketed)


def broadcast(p: Padder, nodes: Sequence[Node]) -> Layout:
    layouts = [p.layout(node) for node in nodes]
    result: list[Dim] = []
    for i in range(max(map(len, layouts), default=0)):
        found: Dim = ()
        for layout in layouts:
            dim = layout[-1 - i] if i < len(layout) else ()
            if not dim or dim == found:
                continue
            if found:
                raise p.refuse(f"its operands are laid out differently, {product(found)} and {product(dim)}", *nodes)
            found = dim
        result.append(found)
    return tuple(reversed(result))
