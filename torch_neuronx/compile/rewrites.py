"""Rewrites of ATen graphs that others ask for (``torch_neuronx.nki.replace``), before a graph is cut into Programs."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from torch.fx import GraphModule

_rewrites: list[Callable[[GraphModule], None]] = []
_state = ""


def add(rewrite: Callable[[GraphModule], None]) -> Callable[[], None]:
    """Calls ``rewrite`` with each ATen graph that is compiled from now on; gives a function that ends this."""
    _rewrites.append(rewrite)
    _change()

    def remove() -> None:
        if rewrite in _rewrites:
            _rewrites.remove(rewrite)
            _change()

    return remove


def apply(gm: GraphModule) -> None:
    for rewrite in _rewrites:
        rewrite(gm)


def tag() -> str:
    """What PyTorch's cache of graphs must know: rewrites are functions, so graphs under them are for this process alone."""
    return _state


def _change() -> None:
    global _state
    _state = uuid.uuid4().hex if _rewrites else ""
