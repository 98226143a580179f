"""Records the device's eager calls as Programs, each kind once: what ``precompile`` and ``readiness`` look at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_neuronx.lowering.program import Program, TensorMeta

_PACKAGES = tuple(str(Path(module.__file__ or "").parent) for module in (torch, sys.modules["torch_neuronx"]))


@dataclass
class Recorded:
    """Calls that are one Program: the same overload on tensors of the same metadata. ``sites``: Python line -> times."""

    op: torch._ops.OpOverload
    program: Program | None  # None: the call looks at metadata only
    count: int = 0
    sites: dict[str, int] = field(default_factory=dict)
    dtypes: frozenset[torch.dtype] = frozenset()


class Recorder(TorchDispatchMode):
    """Inside it, every call on tensors of ``neuron`` is recorded, and runs as usual."""

    def __init__(self, on_new: Callable[[Recorded], None] | None = None) -> None:
        super().__init__()
        self.calls: dict[Any, Recorded] = {}
        self.bytes = 0  # the most that tensors on the device held, as PyTorch's allocator counts it
        self.on_new = on_new

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        wanted = isinstance(func, torch._ops.OpOverload) and (
            any(tensor.device.type == "neuron" for tensor in tensors) or torch.device(kwargs.get("device") or "cpu").type == "neuron"
        )
        if wanted and not only_metadata(func):
            self._record(func, args, kwargs, tensors)
        return func(*args, **kwargs)

    def _record(self, func: torch._ops.OpOverload, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> None:
        dense = [tensor for tensor in tensors if tensor.layout is torch.strided and not tensor.is_nested]
        rest = [_constant(leaf) for leaf in tree_leaves((args, kwargs)) if not isinstance(leaf, torch.Tensor)]
        key = (func, tuple(TensorMeta.of(tensor, 0) for tensor in dense), tuple(rest))
        known = self.calls.get(key)
        if known is None:
            program = Program.from_call(func, args, kwargs) if len(dense) == len(tensors) else None
            known = self.calls[key] = Recorded(func, program, dtypes=frozenset(tensor.dtype for tensor in tensors))
            if self.on_new is not None:
                self.on_new(known)
        known.count += 1
        site = _site()
        known.sites[site] = known.sites.get(site, 0) + 1


def _constant(value: Any) -> Any:
    """Floats are payloads: only their type counts."""
    return float if isinstance(value, float) else repr(value)


# What computes nothing: views by another name, questions, and the read of one element (a wait of the host, counted as such).
_NO_PROGRAM = frozenset(
    "aten::" + name
    for name in "detach lift_fresh _unsafe_view _local_scalar_dense _has_compatible_shallow_copy_type is_set_to _is_zerotensor".split()
)


def only_metadata(func: torch._ops.OpOverload) -> bool:
    """Views, in place too (``t_``, ``resize_as_``), detach, questions and ``item()`` make no Program."""
    returns = func._schema.returns
    view = bool(returns) and any(item.alias_info is not None and not item.alias_info.is_write for item in returns)
    in_place = torch.Tag.inplace_view in func.tags
    return view or in_place or func._schema.name in _NO_PROGRAM


def _site() -> str:
    """File and line of the nearest frame of the user's code."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGES) and not name.startswith("<"):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
