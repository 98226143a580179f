"""Orthogonal polynomials by their recurrences; the degree is a tensor too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import broadcast, convert, result_dtype
from torch_neuronx.lowering.table import CallInfo, put

# name -> (degree 1, the step p_(k+1) from x, k, p_k, p_(k-1)).
_Step = Callable[[Any, Any, Any, Any], Any]


def _chebyshev(x: Any, k: Any, p: Any, q: Any) -> Any:
    return 2 * x * p - q


_FAMILIES: dict[str, tuple[Callable[[Any], Any], _Step]] = {
    "chebyshev_polynomial_t": (lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _chebyshev),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda x, k, p, q: 2 * x * p - 2 * k * q),
    "hermite_polynomial_he": (lambda x: x, lambda x, k, p, q: x * p - k * q),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda x, k, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda x, k, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}


def _lowering(first: Callable[[Any], Any], step: _Step, shifted: bool) -> Callable[..., Any]:
    def lowered(call: CallInfo, x: Any, n: Any) -> Any:
        out = result_dtype(call)
        x, n = broadcast(convert(x, out), convert(n, out))
        x = 2 * x - 1 if shifted else x
        degree = jnp.trunc(n)
        one = jnp.ones_like(x)

        def body(state: Any) -> Any:
            k, p, q, result = state
            following = step(x, k, p, q)
            return k + 1, following, p, jnp.where(degree == k + 1, following, result)

        start = jnp.where(degree == 0, one, jnp.where(degree == 1, first(x), jnp.zeros_like(x)))
        largest = jnp.max(degree) if degree.size else jnp.zeros((), out)
        return lax.while_loop(lambda state: state[0] < largest, body, (jnp.ones((), out), first(x), one, start))[3]

    return lowered


for _name, (_first, _step) in _FAMILIES.items():
    for _prefix, _shifted in (("special_", False), ("special_shifted_", True)):
        if not _shifted or _name.startswith("chebyshev"):
            for _overload in ("", ".x_scalar", ".n_scalar"):
                put(_prefix + _name + _overload, _lowering(_first, _step, _shifted), "polynomials", call=True)
