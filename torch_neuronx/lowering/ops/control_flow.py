"""Higher-order operators: branches and loops over sub-graphs, which are traced in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax
from torch.utils._pytree import tree_leaves

from torch_neuronx.lowering.table import lowers


def _values(tensors: Any) -> list[Any]:
    return [value.read() if hasattr(value, "read") else value for value in tree_leaves(tensors)]


def _traced(tracer: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of tensors as a function of JAX arrays. What it returns must be tensors."""

    def run(*values: Any) -> tuple[Any, ...]:
        with tracer:
            return tuple(_values(function(*(tracer.fresh(value) if hasattr(value, "dtype") else value for value in values))))

    return run


def _wrapped(tracer: Any, results: Any) -> tuple[Any, ...]:
    return tuple(tracer.fresh(value) for value in results)


@lowers("higher_order::cond")
def _cond(tracer: Any, predicate: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    values = _values(operands)
    if not hasattr(predicate, "read"):
        return _wrapped(tracer, _traced(tracer, true_fn if predicate else false_fn)(*values))
    results = lax.cond(predicate.read().reshape(()), _traced(tracer, true_fn), _traced(tracer, false_fn), *values)
    return _wrapped(tracer, results)


@lowers("higher_order::while_loop")
def _while_loop(tracer: Any, cond_fn: Any, body_fn: Any, carried: Any, additional: Any = ()) -> Any:
    start, fixed = tuple(_values(carried)), _values(additional)
    test, body = _traced(tracer, cond_fn), _traced(tracer, body_fn)
    results = lax.while_loop(
        lambda state: test(*state, *fixed)[0].reshape(()),
        lambda state: body(*state, *fixed),
        tuple(_array(value) for value in start),
    )
    return _wrapped(tracer, results)


def _array(value: Any) -> Any:
    import jax.numpy as jnp

    return value if hasattr(value, "dtype") else jnp.asarray(value)


@lowers("higher_order::scan")
def _scan(tracer: Any, combine_fn: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    carry, slices, fixed = tuple(_values(init)), tuple(_values(xs)), _values(additional_inputs)
    step = _traced(tracer, combine_fn)

    def body(state: Any, part: Any) -> Any:
        results = step(*state, *part, *fixed)
        return results[: len(carry)], results[len(carry) :]

    last, stacked = lax.scan(body, carry, slices)
    return [*_wrapped(tracer, last), *_wrapped(tracer, stacked)]


@lowers("higher_order::map_impl")
def _map(tracer: Any, function: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    slices, fixed = tuple(_values(xs)), _values(additional_inputs)
    each = _traced(tracer, function)
    _, stacked = lax.scan(lambda state, part: (state, each(*part, *fixed)), (), slices)
    return list(_wrapped(tracer, stacked))


@lowers("higher_order::invoke_subgraph")
def _invoke_subgraph(tracer: Any, subgraph: Any, _identifier: Any, *operands: Any) -> Any:
    """A region that is called more than once, in place."""
    return _wrapped(tracer, _traced(tracer, subgraph)(*_values(operands)))
