"""A JAX function becomes a StableHLO module: tracing by ``jax.jit``, and an MLIR context with the dialects that a module needs.

``jax.jit(...).lower()`` makes a context with every dialect of MLIR for each module, which costs more than the rest of one operator's
lowering. A context is not shared between modules: it never frees the constants that it has seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.interpreters import mlir
from jax._src.lib.mlir import dialects
from jax._src.sharding_impls import ShardingContext
from jaxlib.mlir import ir

from torch_neuronx.lowering import pairs

_FIRST_CHANNEL = 2  # XLA reserves 0; JAX numbers from here too


def module_of(function: Callable[..., Any], shapes: Sequence[Any], real: bool = False) -> Any:
    """The MLIR module whose ``main`` is ``function`` of arrays of ``shapes`` (jax.ShapeDtypeStruct); it keeps unused parameters.

    ``real``: without complex numbers. Those of ``function`` become pairs; see :mod:`torch_neuronx.lowering.pairs`.

    Raises NotLowered when a complex operation has no such form, ValueError with MLIR's words when the module does not verify.
    """
    closed = jax.jit(function, keep_unused=True).trace(*shapes).jaxpr
    if real and pairs.has_complex(closed):
        on_pairs, shapes = pairs.on_pairs(closed)
        closed = jax.jit(on_pairs, keep_unused=True).trace(*shapes).jaxpr
    building = mlir.ModuleContext(
        platforms=("cpu",),
        backend=None,
        axis_context=ShardingContext(1),
        keepalives=[],
        channel_iterator=itertools.count(_FIRST_CHANNEL),
        host_callbacks=[],
        lowering_parameters=mlir.LoweringParameters(hoist_constants_as_args=False),
        context=_context(),
    )
    with building.context, ir.Location.unknown(building.context):
        attributes = building.module.operation.attributes
        attributes["sym_name"] = ir.StringAttr.get("jit_main")
        attributes["mhlo.num_replicas"] = attributes["mhlo.num_partitions"] = mlir.i32_attr(1)
        mlir.lower_jaxpr_to_fun(building, "main", closed, [], num_const_args=0, main_function=True, in_avals=closed.in_avals)
        try:
            building.module.operation.verify()
        except ir.MLIRError as error:
            raise ValueError(f"the lowered module does not verify: {error}") from error
    return building.module


def _context() -> Any:
    """An MLIR context that knows what JAX's rules emit; other upstream dialects load when one is met."""
    context = mlir.JaxIrContext()
    context.append_dialect_registry(mlir.upstream_dialects)
    context.set_thread_pool(mlir.global_thread_pool)
    for register in (dialects.sdy.register_dialect, dialects.mhlo.register_mhlo_dialect, dialects.chlo.register_dialect):
        register(context)
    dialects.hlo.register_dialect(context)
    _ = context.dialects["func"]  # loads it
    return context
