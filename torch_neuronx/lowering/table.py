"""The table ``ATen overload -> JAX function``. The files in ``ops/`` fill it, one op family each.

A lowering takes the arguments of its overload's schema, tensors as JAX arrays of their logical shape, and returns the results as JAX
arrays. It is pure: in-place and ``out=`` forms are derived (tracer.py). It may call only functions of ``jax``; it must not ask for values.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# One module an op family, imported when something is first lowered: each imports JAX.
FAMILIES = (
    "pointwise",
    "activations",
    "creation",
    "shape",
    "reduction",
    "matmul",
    "convolution",
    "pooling",
    "indexing",
    "sorting",
    "normalization",
    "recurrent",
    "attention",
    "linear_algebra",
    "fourier",
    "random",
    "embedding",
    "loss",
    "optimizers",
    "foreach",
    "resize",
    "sampling",
    "distance",
    "statistics",
    "polynomials",
    "control_flow",
    "collectives",
    "primitives",
    "kernels",
)


@dataclass(frozen=True)
class Lowering:
    """One row of the table."""

    function: Callable[..., Any]
    family: str
    wants_call: bool  # its first argument is the CallInfo


@dataclass(frozen=True)
class OutMeta:
    """One result's contract."""

    dtype: torch.dtype
    shape: tuple[Any, ...]


@dataclass
class CallInfo:
    """What a lowering may know of its call beyond the values."""

    args: tuple[Any, ...]  # as given, with tensors of device meta: for type promotion
    out: Any  # an OutMeta, or a list of them; None: PyTorch has no meta kernel
    target: str  # "portable", "trn1", "trn2" or "trn3"


class NotLowered(RuntimeError):
    """An operator cannot be lowered. ``op``: its overload's name; ``reason``: why, without the name."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op} cannot be lowered for Trainium: {reason}")
        self.op, self.reason = op, reason


_TABLE: dict[str, Lowering] = {}


def lowers(*names: str, call: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function for overloads named as in the dispatcher ("add.Tensor"; namespace ``aten::`` unless given)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        family = function.__module__.rpartition(".")[2]
        for name in names:
            put(name, function, family, call)
        return function

    return register


def put(name: str, function: Callable[..., Any], family: str, call: bool = False) -> None:
    """Registers one function without a decorator, for families that are tables themselves."""
    name = name if "::" in name else f"aten::{name}"
    if name in _TABLE:
        raise ValueError(f"{name} is in the lowering table twice")
    _TABLE[name] = Lowering(function, family, call)


def table() -> dict[str, Lowering]:
    """All rows by overload name. Imports JAX at the first call."""
    for family in FAMILIES:
        importlib.import_module(f"torch_neuronx.lowering.ops.{family}")
    return _TABLE


def table_so_far() -> dict[str, Lowering]:
    """The rows registered by now, for a family that refers to an earlier one."""
    return _TABLE
