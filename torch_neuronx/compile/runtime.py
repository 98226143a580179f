"""How a part of a graph runs: as a Program on the device, or as Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch_neuronx import _C
from torch_neuronx.compile.padding.plan import Plan
from torch_neuronx.compile.padding.run import Bucketed

Runner = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Kind:
    """How one part runs. ``reads_offsets``: what it does may depend on the storage offsets of its inputs, so they are part of the key.
    ``plan``: how it runs on padded sizes; None without symbolic sizes.
    """

    is_program: bool
    reads_offsets: bool = False
    plan: Plan | None = None

    def runner(self, function: Callable[..., Sequence[Any]], name: str, padded: Callable[..., Sequence[Any]] | None = None) -> Runner:
        """``function`` run once for each key and recorded, replayed afterwards; or called anew each time.

        ``padded``: the function on padded sizes, where ``plan`` has any.
        """
        if not self.is_program or not hasattr(_C, "CompiledGraph"):
            return _on_host(function)
        exact = _C.CompiledGraph(function, name, offsets_in_key=self.reads_offsets)
        if self.plan is None:
            return exact
        graph = None if padded is None else _C.CompiledGraph(padded, f"{name}, padded", offsets_in_key=self.reads_offsets)
        return Bucketed(exact, graph, self.plan)


def _on_host(function: Callable[..., Sequence[Any]]) -> Runner:
    def run(inputs: list[Any]) -> Sequence[Any]:
        given = tuple(inputs)
        inputs.clear()
        return function(*given)

    return run
