"""What each operator makes of padded arguments: a table ``overload packet -> rule``.

A rule gets the Padder, the old node and its arguments by name; it makes the new node and says how its result is laid out, or raises
Refused.
Whatever has no row is refused.
A file for each family of operators; ``table.py`` has what they share.
"""

from __future__ import annotations

import torch

from torch_neuronx.compile.padding.layout import Refused
from torch_neuronx.compile.padding.rules import batches, lookups, losses, moving, products, rows, sums  # noqa: F401  (their rows of the table)
from torch_neuronx.compile.padding.rules.elementwise import pointwise
from torch_neuronx.compile.padding.rules.table import RULES, Rule

__all__ = ["find"]


def find(op: torch._ops.OpOverload) -> Rule:
    """The rule of ``op``. Refused: there is none."""
    found = RULES.get(op._schema.name.removeprefix("aten::"))
    if found is None and torch.Tag.pointwise in op.tags:
        found = pointwise
    if found is None:
        raise Refused(f"{op}: nothing is known about it on padded sizes")
    return found
