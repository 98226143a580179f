"""The compiled graphs of this process, for reports. They are not kept alive."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

_numbers = itertools.count()
_graphs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def add(code: Any) -> int:
    """Gives the graph its number in this process."""
    number = next(_numbers)
    _graphs[number] = code
    return number


def graphs() -> list[Any]:
    """All :class:`torch_neuronx.compile.code.CompiledCode` that are alive, oldest first."""
    return [code for _, code in sorted(_graphs.items())]
