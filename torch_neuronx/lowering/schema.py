"""What schemas tell about overloads: which arguments are written, and which functional overload an in-place one goes with."""

from __future__ import annotations

import functools

import torch


@functools.cache
def written_arguments(func: torch._ops.OpOverload) -> list[str]:
    """Names of the arguments that the overload writes, in order."""
    return [argument.name for argument in func._schema.arguments if argument.alias_info is not None and argument.alias_info.is_write]


def _signature(func: torch._ops.OpOverload, without: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """Names and types of the arguments, without aliasing; ``Tensor(a!)`` is a Tensor."""
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments if argument.name not in without]


def _overloads(packet: str) -> list[torch._ops.OpOverload]:
    namespace, name = packet.split("::")
    group = getattr(getattr(torch.ops, namespace), name, None)
    return [getattr(group, overload) for overload in group.overloads()] if group is not None else []


@functools.cache
def functional_overload(func: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload that computes what the mutating ``func`` writes; None when there is none.

    ``add_.Tensor`` -> ``add.Tensor``; ``add.out`` -> ``add.Tensor``; ``_fused_adam_`` -> ``_fused_adam`` (which returns what it wrote).
    """
    schema = func._schema
    packet = schema.name
    outs = frozenset(argument.name for argument in schema.arguments if argument.is_out)
    base = packet if outs else packet.removesuffix("_")
    wanted = _signature(func, without=outs)
    for candidate in _overloads(base) + ([] if outs else _overloads(f"{base}_functional")):
        if candidate._schema.is_mutable or candidate is func:
            continue
        found = _signature(candidate)
        if found == wanted or _factory_of(found, wanted):
            return candidate
    return None


_FACTORY = ("dtype", "layout", "device", "pin_memory")


def _factory_of(found: list[tuple[str, str]], wanted: list[tuple[str, str]]) -> bool:
    """``full.out`` lacks the options that ``full`` has: the result is converted when it is written."""
    return [item for item in found if item[0] not in _FACTORY] == [item for item in wanted if item[0] not in _FACTORY]
