"""How a part of a graph runs: as a Program on the device, or as Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch_neuronx import _C

Runner = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Kind:
    """How one part runs. ``reads_offsets``: what it does may depend on the storage offsets of its inputs, so they are part of the key."""

    is_program: bool
    reads_offsets: bool = False

    def runner(self, function: Callable[..., Sequence[Any]], name: str) -> Runner:
        """``function`` run once for each key and recorded, replayed afterwards; or called anew each time."""
        if self.is_program and hasattr(_C, "CompiledGraph"):
            return _C.CompiledGraph(function, name, offsets_in_key=self.reads_offsets)
        return _on_host(function)


def _on_host(function: Callable[..., Sequence[Any]]) -> Runner:
    def run(inputs: list[Any]) -> Sequence[Any]:
        given = tuple(inputs)
        inputs.clear()
        return function(*given)

    return run
