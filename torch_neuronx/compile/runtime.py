"""How a part of a graph runs: as a Program on the device, or as Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_neuronx import _C

Runner = Callable[[list[Any]], Sequence[Any]]


def program(function: Callable[..., Sequence[Any]], name: str) -> Runner:
    """``function`` as a Program: run once for each key and recorded, replayed afterwards."""
    return _C.CompiledGraph(function, name) if hasattr(_C, "CompiledGraph") else on_host(function)


def on_host(function: Callable[..., Sequence[Any]]) -> Runner:
    """``function`` called anew each time, with the boxed convention."""

    def run(inputs: list[Any]) -> Sequence[Any]:
        given = tuple(inputs)
        inputs.clear()
        return function(*given)

    return run
