"""``nki.compiler``: what kernels and their tools ask of the compiler."""

from __future__ import annotations

from torch_neuronx.nki.language import no_reorder
from torch_neuronx.nki.target import Target, target

__all__ = ["no_reorder", "resolve_target"]


def resolve_target(name: str) -> Target:
    """The target that AWS knows by ``name`` (trn2, gen3...)."""
    return target(name)
