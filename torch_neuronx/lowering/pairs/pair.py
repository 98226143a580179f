"""A complex array as two real ones, and its arithmetic."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax


class Pair(NamedTuple):
    """Real and imaginary parts, of one shape and dtype."""

    re: Any
    im: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.re.shape


def _where(condition: Any, a: Any, b: Any) -> Any:
    """``jnp.where`` whose numbers have the arrays' dtype from the start: JAX would make them float64 first, which no chip has."""
    dtype = next(value.dtype for value in (b, a) if hasattr(value, "dtype"))
    return jnp.where(condition, *(value if hasattr(value, "dtype") else jnp.asarray(value, dtype) for value in (a, b)))


def pair(value: Any) -> Pair:
    """Of a Pair, of a complex constant, or of a real array."""
    if isinstance(value, Pair):
        return value
    if jnp.iscomplexobj(value):  # a constant: traced arrays are pairs already
        import numpy as np

        value = np.asarray(value)
        return Pair(jnp.asarray(value.real.copy()), jnp.asarray(value.imag.copy()))
    return Pair(value, jnp.zeros_like(value))


def add(a: Pair, b: Pair) -> Pair:
    return Pair(a.re + b.re, a.im + b.im)


def sub(a: Pair, b: Pair) -> Pair:
    return Pair(a.re - b.re, a.im - b.im)


def neg(a: Pair) -> Pair:
    return Pair(-a.re, -a.im)


def conj(a: Pair) -> Pair:
    return Pair(a.re, -a.im)


def mul(a: Pair, b: Pair) -> Pair:
    return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def times_i(a: Pair) -> Pair:
    return Pair(-a.im, a.re)


def absolute(a: Pair) -> Any:
    """By the larger part, so that squares neither overflow nor vanish."""
    x, y = jnp.abs(a.re), jnp.abs(a.im)
    large, small = jnp.maximum(x, y), jnp.minimum(x, y)
    ratio = _where(large == 0, 0, small / _where(large == 0, 1, large))
    found = large * jnp.sqrt(1 + ratio * ratio)
    return _where(jnp.isinf(x) | jnp.isinf(y), jnp.inf, found)


def div(a: Pair, b: Pair) -> Pair:
    """With a divisor that is scaled by its larger part (Smith, "Algorithm 116", 1962)."""
    scale = jnp.maximum(jnp.abs(b.re), jnp.abs(b.im))
    usable = jnp.isfinite(scale) & (scale != 0)
    scale = _where(usable, scale, 1)
    c, d = b.re / scale, b.im / scale
    norm = (c * c + d * d) * scale
    re, im = (a.re * c + a.im * d) / norm, (a.im * c - a.re * d) / norm
    zero = (b.re == 0) & (b.im == 0)
    far = (jnp.isinf(b.re) | jnp.isinf(b.im)) & jnp.isfinite(a.re) & jnp.isfinite(a.im)
    re, im = _where(zero, a.re / b.re, re), _where(zero, a.im / b.re, im)
    return Pair(_where(far, 0, re), _where(far, 0, im))


def select(where: Any, a: Pair, b: Pair) -> Pair:
    return Pair(_where(where, a.re, b.re), _where(where, a.im, b.im))


def angle(a: Pair) -> Any:
    return jnp.arctan2(a.im, a.re)


def exp(a: Pair) -> Pair:
    size = jnp.exp(a.re)
    return Pair(size * jnp.cos(a.im), _where(a.im == 0, a.im, size * jnp.sin(a.im)))


def exp2(a: Pair) -> Pair:
    factor = jnp.asarray(0.6931471805599453, a.re.dtype)
    return exp(Pair(a.re * factor, a.im * factor))


def maximum(a: Pair, b: Pair) -> Pair:
    """In XLA's order: by the real parts, then by the imaginary ones."""
    return select((a.re > b.re) | ((a.re == b.re) & (a.im > b.im)), a, b)


def expm1(a: Pair) -> Pair:
    half = jnp.sin(a.im / 2)
    return Pair(jnp.expm1(a.re) * jnp.cos(a.im) - 2 * half * half, jnp.exp(a.re) * jnp.sin(a.im))


def log(a: Pair) -> Pair:
    return Pair(jnp.log(absolute(a)), angle(a))


def log1p(a: Pair) -> Pair:
    """Near zero by log1p of what the square of |1 + z| is above one."""
    one = Pair(1 + a.re, a.im)
    near = 0.5 * jnp.log1p(a.re * (2 + a.re) + a.im * a.im)
    return Pair(_where(absolute(a) < 0.5, near, jnp.log(absolute(one))), angle(one))


def sqrt(a: Pair) -> Pair:
    size = absolute(a)
    t = jnp.sqrt((size + jnp.abs(a.re)) / 2)
    other = _where(t == 0, 0, jnp.abs(a.im) / (2 * _where(t == 0, 1, t)))
    re, im = _where(a.re >= 0, t, other), _where(a.re >= 0, other, t)
    endless = jnp.isinf(a.im)
    re, im = _where(endless, jnp.inf, re), _where(endless, jnp.inf, im)
    return Pair(re, jnp.copysign(im, a.im))


def sin(a: Pair) -> Pair:
    return Pair(jnp.sin(a.re) * jnp.cosh(a.im), jnp.cos(a.re) * jnp.sinh(a.im))


def cos(a: Pair) -> Pair:
    return Pair(jnp.cos(a.re) * jnp.cosh(a.im), -jnp.sin(a.re) * jnp.sinh(a.im))


def sinh(a: Pair) -> Pair:
    return Pair(jnp.sinh(a.re) * jnp.cos(a.im), jnp.cosh(a.re) * jnp.sin(a.im))


def cosh(a: Pair) -> Pair:
    return Pair(jnp.cosh(a.re) * jnp.cos(a.im), jnp.sinh(a.re) * jnp.sin(a.im))


def tanh(a: Pair) -> Pair:
    t, s, c = jnp.tanh(a.re), jnp.sin(a.im), jnp.cos(a.im)
    norm = c * c + t * t * s * s
    cosh = jnp.cosh(jnp.minimum(jnp.abs(a.re), jnp.asarray(40, a.re.dtype)))
    return Pair(t / norm, s * c / (cosh * cosh) / norm)


def tan(a: Pair) -> Pair:
    found = tanh(times_i(a))
    return Pair(found.im, -found.re)


def _one(a: Pair) -> Pair:
    return Pair(jnp.ones_like(a.re), jnp.zeros_like(a.im))


def atanh(a: Pair) -> Pair:
    """((log1p(z) - log1p(-z)) / 2"""
    b = sub(log1p(a), log1p(neg(a)))
    return Pair(b.re / 2, b.im / 2)


def atan(a: Pair) -> Pair:
    found = atanh(times_i(a))
    return Pair(found.im, -found.re)


def _roots(a: Pair) -> tuple[Pair, Pair]:
    """sqrt(1 - z), sqrt(1 + z)"""
    return sqrt(Pair(1 - a.re, -a.im)), sqrt(Pair(1 + a.re, a.im))


def asin(a: Pair) -> Pair:
    """Kahan's formulas ("Branch cuts for complex elementary functions", 1987)."""
    minus, plus = _roots(a)
    return Pair(jnp.arctan2(a.re, minus.re * plus.re - minus.im * plus.im), jnp.arcsinh(minus.re * plus.im - minus.im * plus.re))


def acos(a: Pair) -> Pair:
    minus, plus = _roots(a)
    return Pair(2 * jnp.arctan2(minus.re, plus.re), jnp.arcsinh(plus.re * minus.im - plus.im * minus.re))


def asinh(a: Pair) -> Pair:
    found = asin(times_i(a))
    return Pair(found.im, -found.re)


def acosh(a: Pair) -> Pair:
    less, more = sqrt(Pair(a.re - 1, a.im)), sqrt(Pair(a.re + 1, a.im))
    return Pair(jnp.arcsinh(less.re * more.re + less.im * more.im), 2 * jnp.arctan2(less.im, more.re))


def power(a: Pair, b: Pair) -> Pair:
    zero = (a.re == 0) & (a.im == 0)
    safe = select(zero, _one(a), a)
    found = exp(mul(b, log(safe)))
    nan = jnp.asarray(jnp.nan, found.re.dtype)
    of_zero = _where((b.re == 0) & (b.im == 0), 1, _where(b.re > 0, 0, nan))
    of_zero = Pair(of_zero, jnp.zeros_like(found.im))
    return select(zero, of_zero, found)


def integer_power(a: Pair, exponent: int) -> Pair:
    result, base, left = _one(a), a, abs(exponent)
    while left:
        if left & 1:
            result = mul(result, base)
        left >>= 1
        if left:
            base = mul(base, base)
    return div(_one(a), result) if exponent < 0 else result


def sign(a: Pair) -> Pair:
    size = absolute(a)
    safe = _where(size == 0, 1, size)
    return Pair(_where(size == 0, 0, a.re / safe), _where(size == 0, 0, a.im / safe))


def logistic(a: Pair) -> Pair:
    return div(_one(a), add(_one(a), exp(neg(a))))


def rsqrt(a: Pair) -> Pair:
    return div(_one(a), sqrt(a))


def product(a: Pair, axes: Any) -> Pair:
    one, zero = jnp.ones((), a.re.dtype), jnp.zeros((), a.re.dtype)
    return Pair(*lax.reduce(tuple(a), (one, zero), lambda x, y: tuple(mul(Pair(*x), Pair(*y))), tuple(axes)))
