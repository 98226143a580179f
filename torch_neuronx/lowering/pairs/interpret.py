"""Runs a jaxpr with a pair of real arrays for each complex one.

One rule a *primitive*, of which JAX has few, so that every row of the lowering table carries over as it is: rows say ``x * y`` or
``jnp.exp(x)`` of complex arrays, and what is lowered are the real ones. Parameters and results of the whole are interleaved, real part
first, in one more dimension: PyTorch's complex memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import source_info_util
from jax.extend import core

from torch_neuronx.lowering.pairs import fourier, pair
from torch_neuronx.lowering.pairs.pair import Pair
from torch_neuronx.lowering.table import NotLowered

_REAL = {"complex64": "float32", "complex128": "float64"}


def _is_complex(value: Any) -> bool:
    return str(value.aval.dtype) in _REAL if hasattr(value.aval, "dtype") else False


def has_complex(jaxpr: Any) -> bool:
    """Whether any value of a (closed or open) jaxpr is complex, sub-programs included."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    if any(_is_complex(value) for value in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars)):
        return True
    return any(any(_is_complex(value) for value in (*eqn.invars, *eqn.outvars)) or any(map(has_complex, _inner(eqn))) for eqn in jaxpr.eqns)


def _inner(eqn: Any) -> list[Any]:
    found = []
    for value in eqn.params.values():
        for one in value if isinstance(value, (tuple, list)) else [value]:
            if hasattr(one, "eqns") or hasattr(one, "jaxpr"):
                found.append(one)
    return found


def on_pairs(closed: Any) -> tuple[Callable[..., tuple[Any, ...]], list[Any]]:
    """The function of a closed jaxpr on interleaved real arrays, and the shapes (jax.ShapeDtypeStruct) of its parameters."""

    def function(*arguments: Any) -> tuple[Any, ...]:
        values = [
            Pair(argument[..., 0], argument[..., 1]) if _is_complex(variable) else argument
            for variable, argument in zip(closed.jaxpr.invars, arguments, strict=True)
        ]
        results = run(closed.jaxpr, closed.consts, values)
        return tuple(jnp.stack(tuple(result), -1) if isinstance(result, Pair) else result for result in results)

    shapes = [
        jax.ShapeDtypeStruct((*one.shape, 2), _REAL[str(one.dtype)])
        if str(one.dtype) in _REAL
        else jax.ShapeDtypeStruct(one.shape, one.dtype)
        for one in closed.in_avals
    ]
    return function, shapes


def run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr; values are Pairs where its variables are complex."""
    known: dict[Any, Any] = {}

    def read(variable: Any) -> Any:
        value = variable.val if isinstance(variable, core.Literal) else known[variable]
        return pair.pair(value) if _is_complex(variable) else value

    known.update(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))
    for eqn in jaxpr.eqns:
        values = [read(variable) for variable in eqn.invars]
        names = source_info_util.current_name_stack() + eqn.source_info.name_stack
        with source_info_util.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
            results = _equation(eqn, values)
        for variable, result in zip(eqn.outvars, results, strict=True):
            if _is_complex(variable):
                dtype = _REAL[str(variable.aval.dtype)]
                result = Pair(*(part if part.dtype == dtype else part.astype(dtype) for part in pair.pair(result)))
            known[variable] = result
    return [read(variable) for variable in jaxpr.outvars]


def _equation(eqn: Any, values: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    touched = any(_is_complex(value) for value in (*eqn.invars, *eqn.outvars))
    if not touched and not any(map(has_complex, _inner(eqn))):
        return _bind(eqn, values)
    if name in _CALLS:
        inner = next(value for key, value in eqn.params.items() if key in ("jaxpr", "call_jaxpr", "fun_jaxpr"))
        consts = getattr(inner, "consts", ())
        return run(getattr(inner, "jaxpr", inner), consts, values)
    if name in _CONTROL:
        return _CONTROL[name](eqn, values)
    if name in _BY_PARTS:
        return _by_parts(eqn, values)
    if name in _RULES:
        found = _RULES[name](eqn, *values)
        return found if isinstance(found, list) else [found]
    raise NotLowered(f"stablehlo {name}", "it has no form on pairs of real numbers, and a chip has no complex ones")


def _bind(eqn: Any, values: Sequence[Any]) -> list[Any]:
    results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


_CALLS = frozenset(
    ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
)

# Linear in all of their complex operands together, or moving elements: real and imaginary parts go their own ways.
_BY_PARTS = frozenset(
    """
    reshape transpose broadcast_in_dim slice concatenate stack tile pad dynamic_slice dynamic_update_slice gather scatter scatter-add rev
    select_n squeeze expand_dims copy copy_p neg reduce_sum cumsum add sub add_any reduce_window_sum select_and_scatter_add
    optimization_barrier stop_gradient split
    """.split()
)


def _by_parts(eqn: Any, values: list[Any]) -> list[Any]:
    """The same operator twice. A parameter that names a dtype names the real one."""
    results = []
    for part in (0, 1):
        mine = [pair.pair(value)[part] if _is_complex(variable) else value for variable, value in zip(eqn.invars, values, strict=True)]
        found = _scattered(eqn, mine) if eqn.primitive.name.startswith("scatter") else _bind(eqn, mine)
        results.append(found)
    return [Pair(re, im) if _is_complex(variable) else re for variable, re, im in zip(eqn.outvars, results[0], results[1], strict=True)]


def _scattered(eqn: Any, values: list[Any]) -> list[Any]:
    """The parameters hold the sum of two elements as a program of complex numbers, so it is asked for anew."""
    p = eqn.params
    scatter = lax.scatter_add if eqn.primitive.name == "scatter-add" else lax.scatter
    return [
        scatter(
            *values,
            p["dimension_numbers"],
            indices_are_sorted=p["indices_are_sorted"],
            unique_indices=p["unique_indices"],
            mode=p["mode"],
        )
    ]


# ---- Control flow: a pair is two leaves --------------------------------------------------------------------------------------


def _flat(values: Sequence[Any]) -> list[Any]:
    return [part for value in values for part in (value if isinstance(value, Pair) else (value,))]


def _packed(variables: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    rest = iter(leaves)
    return [Pair(next(rest), next(rest)) if _is_complex(variable) else next(rest) for variable in variables]


def _while(eqn: Any, values: list[Any]) -> list[Any]:
    p = eqn.params
    of_condition, of_body = p["cond_nconsts"], p["body_nconsts"]
    condition_consts, body_consts, carried = (
        values[:of_condition],
        values[of_condition : of_condition + of_body],
        values[of_condition + of_body :],
    )
    condition, body = p["cond_jaxpr"], p["body_jaxpr"]
    variables = body.jaxpr.invars[of_body:]
    return _packed(
        variables,
        lax.while_loop(
            lambda leaves: run(condition.jaxpr, condition.consts, [*condition_consts, *_packed(variables, leaves)])[0],
            lambda leaves: _flat(run(body.jaxpr, body.consts, [*body_consts, *_packed(variables, leaves)])),
            _flat(values if not (of_condition + of_body) else carried),
        ),
    )


def _scan(eqn: Any, values: list[Any]) -> list[Any]:
    p = eqn.params
    consts, carries, body = p["num_consts"], p["num_carry"], p["jaxpr"]
    held, first, sliced = values[:consts], values[consts : consts + carries], values[consts + carries :]
    of_carry, of_slices = body.jaxpr.invars[consts : consts + carries], body.jaxpr.invars[consts + carries :]

    def step(carry: Any, slices: Any) -> Any:
        results = run(body.jaxpr, body.consts, [*held, *_packed(of_carry, carry), *_packed(of_slices, slices)])
        return _flat(results[:carries]), _flat(results[carries:])

    last, stacked = lax.scan(step, _flat(first), _flat(sliced), length=p["length"], reverse=p["reverse"], unroll=p["unroll"])
    return _packed(eqn.outvars[:carries], last) + _packed(eqn.outvars[carries:], stacked)


def _cond(eqn: Any, values: list[Any]) -> list[Any]:
    branches, operands = eqn.params["branches"], values[1:]
    variables = eqn.invars[1:]

    def branch(closed: Any) -> Callable[..., Any]:
        return lambda *leaves: _flat(run(closed.jaxpr, closed.consts, _packed(variables, leaves)))

    return _packed(eqn.outvars, lax.switch(values[0], [branch(one) for one in branches], *_flat(operands)))


_CONTROL = {"while": _while, "scan": _scan, "cond": _cond}


# ---- Arithmetic ------------------------------------------------------------------------------------------------------------


def _convert(eqn: Any, value: Any) -> Any:
    dtype = eqn.params["new_dtype"]
    if str(dtype) in _REAL:
        return Pair(*(part.astype(_REAL[str(dtype)]) for part in pair.pair(jnp.asarray(value) if not isinstance(value, Pair) else value)))
    if dtype == jnp.bool_:
        return (value.re != 0) | (value.im != 0)
    return value.re.astype(dtype)


def _products(eqn: Any, a: Any, b: Any) -> Pair:
    """Matrix products and convolutions: four real ones."""
    a, b = pair.pair(a), pair.pair(b)
    params = dict(eqn.params)
    preferred = params.get("preferred_element_type")
    if preferred is not None and str(jnp.dtype(preferred)) in _REAL:
        params["preferred_element_type"] = jnp.dtype(_REAL[str(jnp.dtype(preferred))])

    def times(x: Any, y: Any) -> Any:
        return eqn.primitive.bind(x, y, **params)

    return Pair(times(a.re, b.re) - times(a.im, b.im), times(a.re, b.im) + times(a.im, b.re))


def _cumulative_product(eqn: Any, a: Pair) -> Pair:
    return Pair(
        *lax.associative_scan(
            lambda x, y: tuple(pair.mul(Pair(*x), Pair(*y))), tuple(a), axis=eqn.params["axis"], reverse=eqn.params["reverse"]
        )
    )


def _fft(eqn: Any, value: Any) -> Any:
    kind = getattr(eqn.params["fft_type"], "name", None) or str(eqn.params["fft_type"])
    return fourier.fft(value, kind.rsplit(".", 1)[-1], tuple(eqn.params["fft_lengths"]))


def _reduce_precision(eqn: Any, a: Pair) -> Pair:
    return Pair(*(lax.reduce_precision(part, **eqn.params) for part in a))


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that takes complex operands alone."""
    return lambda eqn, *values: function(*map(pair.pair, values))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mul": pair.mul,
    "div": pair.div,
    "exp": pair.exp,
    "exp2": pair.exp2,
    "max": pair.maximum,
    "expm1": pair.expm1,
    "log": pair.log,
    "log1p": pair.log1p,
    "sqrt": pair.sqrt,
    "rsqrt": pair.rsqrt,
    "sin": pair.sin,
    "cos": pair.cos,
    "tan": pair.tan,
    "sinh": pair.sinh,
    "cosh": pair.cosh,
    "tanh": pair.tanh,
    "asin": pair.asin,
    "acos": pair.acos,
    "atan": pair.atan,
    "asinh": pair.asinh,
    "acosh": pair.acosh,
    "atanh": pair.atanh,
    "pow": pair.power,
    "sign": pair.sign,
    "logistic": pair.logistic,
}

_RULES: dict[str, Callable[..., Any]] = {
    "complex": lambda eqn, re, im: Pair(re, im),
    "real": lambda eqn, a: a.re,
    "imag": lambda eqn, a: a.im,
    "conj": lambda eqn, a: pair.conj(pair.pair(a)),
    "abs": lambda eqn, a: pair.absolute(a),
    "convert_element_type": _convert,
    "reduce_precision": _reduce_precision,
    "eq": lambda eqn, a, b: (a.re == b.re) & (a.im == b.im),
    "ne": lambda eqn, a, b: (a.re != b.re) | (a.im != b.im),
    "is_finite": lambda eqn, a: jnp.isfinite(a.re) & jnp.isfinite(a.im),
    "integer_pow": lambda eqn, a: pair.integer_power(a, eqn.params["y"]),
    "square": lambda eqn, a: pair.mul(a, a),
    "dot_general": _products,
    "conv_general_dilated": _products,
    "reduce_prod": lambda eqn, a: pair.product(a, eqn.params["axes"]),
    "cumprod": _cumulative_product,
    "fft": _fft,
    **{name: _of(function) for name, function in _FUNCTIONS.items()},
}
