"""``neuronxcc.nki.compiler``: direct allocation. Addresses are accepted; the emulation gives each tensor memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch_neuronx.nki.language import no_reorder
from torch_neuronx.nki.memory import MemoryRegion

__all__ = ["enable_stack_allocator", "force_auto_alloc", "multi_buffer", "no_reorder", "psum", "sbuf", "skip_middle_end_transformations"]


@dataclass(frozen=True)
class Allocation:
    """What ``sbuf.mod_alloc(...)`` gives to ``nl.ndarray(buffer=)``."""

    region: MemoryRegion


@dataclass(frozen=True)
class _Memory:
    region: MemoryRegion

    def alloc(self, function: Any = None, **_: Any) -> Allocation:
        """Addresses by a function of the block index."""
        return Allocation(self.region)

    def mod_alloc(self, **_: Any) -> Allocation:
        """Addresses that repeat after a number of tiles."""
        return Allocation(self.region)

    def auto_alloc(self, **_: Any) -> Allocation:
        """The compiler's choice."""
        return Allocation(self.region)


sbuf, psum = _Memory(MemoryRegion.sbuf), _Memory(MemoryRegion.psum)


def _decorator(function: Any = None, **_: Any) -> Any:
    """Accepted and ignored."""
    return function if callable(function) else lambda f: f


skip_middle_end_transformations: Callable[..., Any] = _decorator
enable_stack_allocator: Callable[..., Any] = _decorator
force_auto_alloc: Callable[..., Any] = _decorator


@contextmanager
def multi_buffer(*_: Any, **__: Any) -> Iterator[None]:
    """Accepted and ignored: every tile has memory of its own."""
    yield
