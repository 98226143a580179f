"""Element by element: arithmetic, comparisons, functions of one number, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from torch_neuronx.lowering.promotion import (
    broadcast,
    constant,
    convert,
    inputs_dtype,
    is_complex,
    is_float,
    result_dtype,
    wide,
)
from torch_neuronx.lowering.table import CallInfo, lowers, put

FAMILY = "pointwise"
Function = Callable[..., Any]


def like(value: Any, number: float) -> Any:
    """``number`` in the dtype of ``value``."""
    return constant(number, value.dtype)


def scale(value: Any, number: float) -> Any:
    return value * like(value, number)


# ---- One argument ----


def _trunc(x: Any) -> Any:
    return jnp.where(x < 0, lax.ceil(x), lax.floor(x)) if is_float(x) else x


def _sign(x: Any) -> Any:
    if x.dtype == jnp.bool_:
        return x
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def _sgn(x: Any) -> Any:
    if not is_complex(x):
        return _sign(x)
    size = jnp.abs(x)
    return jnp.where(size == 0, like(x, 0), x / jnp.where(size == 0, like(size, 1), size).astype(x.dtype))


def _round(x: Any) -> Any:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) if is_float(x) else x


def _sinc(x: Any) -> Any:
    turn = scale(x, math.pi)
    return jnp.where(x == 0, like(x, 1), lax.sin(turn) / jnp.where(x == 0, like(x, 1), turn))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + jnp.exp(-x)) if is_complex(x) else lax.logistic(x)


def _log2(x: Any) -> Any:
    return jnp.log2(x) if is_complex(x) else scale(lax.log(x), 1 / math.log(2))


def _log10(x: Any) -> Any:
    return scale(jnp.log(x), 1 / math.log(10))


def _log1p(x: Any) -> Any:
    if not is_complex(x):
        return lax.log1p(x)
    # log|1 + z| without cancellation near 0.
    real, imag = x.real, x.imag
    size = lax.log1p(real * (2 + real) + imag * imag) / 2
    return lax.complex(jnp.where(jnp.abs(x) < 0.5, size, jnp.log(jnp.abs(1 + x))), jnp.arctan2(imag, 1 + real))


def _expm1(x: Any) -> Any:
    if not is_complex(x):
        return lax.expm1(x)
    real, imag = x.real, x.imag
    half = jnp.sin(imag / 2)
    return lax.complex(lax.expm1(real) * jnp.cos(imag) - 2 * half * half, jnp.exp(real) * jnp.sin(imag))


def _entr(x: Any) -> Any:
    inner = -x * lax.log(jnp.where(x > 0, x, like(x, 1)))
    return jnp.where(jnp.isnan(x), x, jnp.where(x > 0, inner, jnp.where(x == 0, like(x, 0), like(x, -math.inf))))


def _erfcx(x: Any) -> Any:
    """exp(x^2) erfc(x): a quotient where that is finite, an asymptotic series beyond."""
    near = jnp.exp(jnp.minimum(x * x, like(x, 80))) * lax.erfc(x)
    far = jnp.maximum(x, like(x, 5))
    inverse = 1 / (2 * far * far)
    series = 1 - inverse * (1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse * (1 - 9 * inverse * (1 - 11 * inverse)))))
    return jnp.where(x > 5, series / (far * math.sqrt(math.pi)), jnp.where(x < -9, 2 * jnp.exp(x * x), near))


def _log_ndtr(x: Any) -> Any:
    return special.log_ndtr(x)


# Computed in float32 for the 16-bit floats; the result's dtype is PyTorch's (whole numbers become the default dtype).
_UNARY: dict[str, Function] = {
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "cos": lax.cos,
    "cosh": lax.cosh,
    "sin": lax.sin,
    "sinh": lax.sinh,
    "tan": lax.tan,
    "tanh": lax.tanh,
    "exp": lax.exp,
    "exp2": lambda x: lax.exp(scale(x, math.log(2))) if is_complex(x) else jnp.exp2(x),
    "expm1": _expm1,
    "log": jnp.log,
    "log2": _log2,
    "log10": _log10,
    "log1p": _log1p,
    "sqrt": lax.sqrt,
    "rsqrt": lambda x: 1 / lax.sqrt(x) if is_complex(x) else lax.rsqrt(x),
    "reciprocal": lambda x: 1 / x,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "lgamma": lax.lgamma,
    "digamma": lambda x: jnp.where(x == 0, lax.copy_p.bind(jnp.copysign(like(x, math.inf), -x)), lax.digamma(x)),
    "sigmoid": sigmoid,
    "sinc": _sinc,
    "i0": special.i0,
    "special_i0e": special.i0e,
    "special_i1": special.i1,
    "special_i1e": special.i1e,
    "special_entr": _entr,
    "special_erfcx": _erfcx,
    "special_ndtri": special.ndtri,
    "special_log_ndtr": _log_ndtr,
    "deg2rad": lambda x: scale(x, math.pi / 180),
    "rad2deg": lambda x: scale(x, 180 / math.pi),
    "mish": lambda x: x * lax.tanh(jnp.logaddexp(x, like(x, 0))),
    "logsigmoid": lambda x: -jnp.logaddexp(-x, like(x, 0)),
    "hardswish": lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: jnp.clip(x + 3, 0, 6) / 6,
    "frac": lambda x: x - _trunc(x),
}


def _unary(function: Function) -> Function:
    def lowered(call: CallInfo, x: Any) -> Any:
        out = result_dtype(call)
        return convert(function(convert(x, wide(out))), out)

    return lowered


for _name, _function in _UNARY.items():
    put(_name, _unary(_function), FAMILY, call=True)

# Exact in any dtype, which they keep.
_SAME: dict[str, Function] = {
    "neg": lambda x: lax.neg(x),
    "positive": lambda x: x,
    "ceil": lambda x: lax.ceil(x) if is_float(x) else x,
    "floor": lambda x: lax.floor(x) if is_float(x) else x,
    "trunc": _trunc,
    "round": _round,
    "sign": _sign,
    "sgn": _sgn,
    "relu": lambda x: lax.max(x, jnp.zeros_like(x)),
    "bitwise_not": lambda x: lax.bitwise_not(x),
    "conj_physical": lambda x: jnp.conj(x),
    "clone": lambda x, memory_format=None: x,
    "lift_fresh_copy": lambda x: x,
}
for _name, _function in _SAME.items():
    put(_name, _function, FAMILY)

# Give bool.
_TESTS: dict[str, Function] = {
    "logical_not": lambda x: x == 0,
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "isfinite": jnp.isfinite,
    "isposinf": lambda x: x == math.inf if is_float(x) else jnp.zeros(x.shape, bool),
    "isneginf": lambda x: x == -math.inf if is_float(x) else jnp.zeros(x.shape, bool),
    "signbit": lambda x: jnp.signbit(x) if is_float(x) else (x < 0 if x.dtype != jnp.bool_ else jnp.zeros(x.shape, bool)),
}
for _name, _function in _TESTS.items():
    put(_name, _function, FAMILY)


@lowers("abs")
def _abs(x: Any) -> Any:
    return x if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.unsignedinteger) else lax.abs(x)


@lowers("angle", call=True)
def _angle(call: CallInfo, x: Any) -> Any:
    out = result_dtype(call)
    if is_complex(x):
        return jnp.arctan2(x.imag, x.real)
    x = convert(x, out)
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, like(x, math.pi), like(x, 0)))


@lowers("round.decimals")
def _round_decimals(x: Any, decimals: int = 0) -> Any:
    if not is_float(x):
        return x
    work = convert(x, wide(x.dtype))
    power = like(work, 10.0 ** abs(decimals))
    return convert(_round(work * power) / power if decimals >= 0 else _round(work / power) * power, x.dtype)


@lowers("nan_to_num", call=True)
def _nan_to_num(call: CallInfo, x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    if is_complex(x):
        return lax.complex(_nan_to_num(call, x.real, nan, posinf, neginf), _nan_to_num(call, x.imag, nan, posinf, neginf))
    if not is_float(x):
        return x
    largest = float(jnp.finfo(x.dtype).max)
    x = jnp.where(jnp.isnan(x), like(x, nan or 0.0), x)
    x = jnp.where(x == math.inf, like(x, largest if posinf is None else posinf), x)
    return jnp.where(x == -math.inf, like(x, -largest if neginf is None else neginf), x)


@lowers("frexp.Tensor")
def _frexp(x: Any) -> Any:
    mantissa, exponent = jnp.frexp(convert(x, wide(x.dtype)))
    return convert(mantissa, x.dtype), exponent.astype(jnp.int32)


@lowers("logit", call=True)
def _logit(call: CallInfo, x: Any, eps: float | None = None) -> Any:
    out = result_dtype(call)
    x = convert(x, wide(out))
    if eps is not None:
        x = jnp.clip(x, like(x, eps), like(x, 1 - eps))
    return convert(lax.log(x / (1 - x)), out)


_ZETA_STEPS = 16


def _zeta(s: Any, q: Any) -> Any:
    """Hurwitz' zeta. XLA's sums 9 terms before its asymptotic tail, too few where q is negative: the first terms come off here."""
    moved = sum(lax.pow(q + step, -s) for step in range(_ZETA_STEPS)) + lax.zeta(s, q + _ZETA_STEPS)
    infinite = (s == 1) | ((s > 1) & (q <= 0) & (q == lax.floor(q)))
    return jnp.where(infinite, like(q, math.inf), jnp.where(q < 1, moved, lax.zeta(s, q)))


@lowers("polygamma")
def _polygamma(n: int, x: Any) -> Any:
    x = x if is_float(x) else x.astype(jnp.float32)
    work = convert(x, wide(x.dtype))
    if n == 0:
        return convert(lax.digamma(work), x.dtype)
    return convert((-1) ** (n + 1) * math.factorial(n) * _zeta(jnp.full_like(work, n + 1.0), work), x.dtype)


@lowers("mvlgamma")
def _mvlgamma(x: Any, p: int) -> Any:
    x = x if is_float(x) else x.astype(jnp.float32)
    work = convert(x, wide(x.dtype))
    total = sum(lax.lgamma(work - j / 2) for j in range(p))
    return convert(total + p * (p - 1) / 4 * math.log(math.pi), x.dtype)


# ---- Two arguments ----


def _add(a: Any, b: Any) -> Any:
    return a | b if a.dtype == jnp.bool_ else lax.add(a, b)


def _mul(a: Any, b: Any) -> Any:
    return a & b if a.dtype == jnp.bool_ else lax.mul(a, b)


def _remainder(a: Any, b: Any) -> Any:
    """The sign of the divisor."""
    rest = lax.rem(a, b)
    return jnp.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _floor_divide(a: Any, b: Any) -> Any:
    if not is_float(a):
        quotient = lax.div(a, b)
        return jnp.where((lax.rem(a, b) != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)
    rest = lax.rem(a, b)
    quotient = (a - rest) / b
    quotient = jnp.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    floor = lax.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = jnp.where(quotient == 0, jnp.copysign(like(a, 0), a / b), floor)
    return jnp.where(b == 0, a / b, floor)


def _pow(a: Any, b: Any) -> Any:
    if is_float(a) or is_complex(a):
        if is_complex(a):
            zero = (a == 0) & (b == 0)
            return jnp.where(zero, like(a, 1), jnp.power(a, b))
        return lax.pow(a, b)
    if a.dtype == jnp.bool_:
        return a | ~b
    # Whole numbers: a negative power is 1 / a^|b|, that is 0 but for 1 and -1.
    power = jnp.power(a, jnp.where(b < 0, -b, b))
    fraction = jnp.where(a == 1, like(a, 1), jnp.where(a == -1, jnp.where(b % 2 == 0, like(a, 1), like(a, -1)), like(a, 0)))
    return jnp.where(b < 0, fraction, power)


def _fmax(a: Any, b: Any) -> Any:
    return jnp.where(jnp.isnan(a), b, jnp.where(jnp.isnan(b), a, lax.max(a, b))) if is_float(a) else lax.max(a, b)


def _fmin(a: Any, b: Any) -> Any:
    return jnp.where(jnp.isnan(a), b, jnp.where(jnp.isnan(b), a, lax.min(a, b))) if is_float(a) else lax.min(a, b)


def _xlogy(log: Function) -> Function:
    def lowered(a: Any, b: Any) -> Any:
        return jnp.where(jnp.isnan(b), b, jnp.where(a == 0, like(a, 0), a * log(b)))

    return lowered


def _heaviside(a: Any, b: Any) -> Any:
    return jnp.where(a == 0, b, (a > 0).astype(b.dtype))


def _gcd(a: Any, b: Any) -> Any:
    return jnp.abs(jnp.gcd(a, b))


def _logaddexp(base: float) -> Function:
    def lowered(a: Any, b: Any) -> Any:
        if base != math.e:
            return jnp.logaddexp2(a, b)
        return jnp.logaddexp(a, b)

    return lowered


def _shift_left(a: Any, b: Any) -> Any:
    return lax.shift_left(a, b)


def _shift_right(a: Any, b: Any) -> Any:
    """Counts out of range shift everything out, as PyTorch's kernel has it."""
    bits = 8 * a.dtype.itemsize
    if jnp.issubdtype(a.dtype, jnp.unsignedinteger):
        return lax.shift_right_logical(a, b)
    return lax.shift_right_arithmetic(a, jnp.where((b < 0) | (b >= bits), like(b, bits - 1), b))


# Both arguments in the compute dtype of the result.
_BINARY: dict[str, Function] = {
    "mul": _mul,
    "div": lambda a, b: lax.div(a, b),
    "atan2": lax.atan2,
    "maximum": lambda a, b: a | b if a.dtype == jnp.bool_ else lax.max(a, b),
    "minimum": lambda a, b: a & b if a.dtype == jnp.bool_ else lax.min(a, b),
    "fmax": _fmax,
    "fmin": _fmin,
    "remainder": _remainder,
    "fmod": lax.rem,
    "floor_divide": _floor_divide,
    "pow": _pow,
    "hypot": jnp.hypot,
    "logaddexp": _logaddexp(math.e),
    "logaddexp2": _logaddexp(2),
    "xlogy": _xlogy(jnp.log),
    "special_xlog1py": _xlogy(lax.log1p),
    "special_zeta": _zeta,
    "igamma": lax.igamma,
    "igammac": lax.igammac,
    "heaviside": _heaviside,
    "copysign": jnp.copysign,
    "gcd": _gcd,
    "lcm": lambda a, b: jnp.abs(jnp.lcm(a, b)),
    "bitwise_and": lax.bitwise_and,
    "bitwise_or": lax.bitwise_or,
    "bitwise_xor": lax.bitwise_xor,
    "bitwise_left_shift": _shift_left,
    "bitwise_right_shift": _shift_right,
    "__lshift__": _shift_left,
    "__rshift__": _shift_right,
}
# Overloads that PyTorch has of each, beside the unnamed one.
_OVERLOADS = (
    "",
    ".Tensor",
    ".Scalar",
    ".Tensor_Tensor",
    ".Tensor_Scalar",
    ".Scalar_Tensor",
    ".other_scalar",
    ".self_scalar",
    ".Scalar_self",
)


def _exists(name: str) -> bool:
    """Whether PyTorch has the overload."""
    import torch

    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return packet is not None and (overload or "default") in packet.overloads()


def _binary(function: Function) -> Function:
    def lowered(call: CallInfo, a: Any, b: Any) -> Any:
        out = result_dtype(call)
        compute = wide(out)
        return convert(function(*broadcast(convert(a, compute), convert(b, compute))), out)

    return lowered


for _name, _function in _BINARY.items():
    for _overload in _OVERLOADS:
        if _name != "pow" and _exists(_name + _overload):
            put(_name + _overload, _binary(_function), FAMILY, call=True)
for _overload in (".Tensor_Tensor", ".Scalar"):
    put("pow" + _overload, _binary(_pow), FAMILY, call=True)

_POWERS: dict[float, Function] = {
    0.5: lax.sqrt,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    -0.5: lambda x: 1 / lax.sqrt(x),
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
}


@lowers("pow.Tensor_Scalar", call=True)
def _pow_scalar(call: CallInfo, x: Any, exponent: Any) -> Any:
    """PyTorch's kernel has the same special cases, so results agree to the last bit more often."""
    out = result_dtype(call)
    x = convert(x, wide(out))
    exact = _POWERS.get(exponent) if isinstance(exponent, (int, float)) else None
    if exact is not None and (is_float(x) or (exponent in (2, 3) and x.dtype != jnp.bool_)):
        return convert(exact(x), out)
    return convert(_pow(*broadcast(x, convert(exponent, x.dtype))), out)


@lowers("nextafter")
def _nextafter(a: Any, b: Any) -> Any:
    return lax.nextafter(*broadcast(a, b))


@lowers("ldexp.Tensor", call=True)
def _ldexp(call: CallInfo, x: Any, exponent: Any) -> Any:
    out = result_dtype(call)
    x, power = broadcast(convert(x, wide(out)), convert(exponent, wide(out)))
    return convert(x * jnp.exp2(power), out)


@lowers("add.Tensor", "add.Scalar", call=True)
def _add_scaled(call: CallInfo, a: Any, b: Any, alpha: Any = 1) -> Any:
    out = result_dtype(call)
    a, b = broadcast(convert(a, wide(out)), convert(b, wide(out)))
    return convert(_add(a, b if _is_one(alpha) else _mul(b, convert(alpha, b.dtype))), out)


@lowers("sub.Tensor", "sub.Scalar", call=True)
def _sub_scaled(call: CallInfo, a: Any, b: Any, alpha: Any = 1) -> Any:
    out = result_dtype(call)
    a, b = broadcast(convert(a, wide(out)), convert(b, wide(out)))
    return convert(a - (b if _is_one(alpha) else b * convert(alpha, b.dtype)), out)


@lowers("rsub.Tensor", "rsub.Scalar", call=True)
def _rsub_scaled(call: CallInfo, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _sub_scaled(call, b, a, alpha)


def _is_one(alpha: Any) -> bool:
    return isinstance(alpha, (int, float, complex)) and alpha == 1


@lowers("div.Tensor_mode", "div.Scalar_mode", call=True)
def _div_mode(call: CallInfo, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    out = result_dtype(call)
    a, b = broadcast(convert(a, wide(out)), convert(b, wide(out)))
    quotient = _floor_divide(a, b) if rounding_mode == "floor" else lax.div(a, b)
    if rounding_mode == "trunc" and is_float(quotient):
        format_ = jnp.finfo(out)  # what PyTorch cuts is the quotient as its own dtype rounds it; XLA would drop two conversions
        quotient = _trunc(lax.reduce_precision(quotient, format_.nexp, format_.nmant))
    return convert(quotient, out)


# Both arguments in the dtype that they promote to; the result is bool.
_COMPARE: dict[str, Function] = {"eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge}


def _comparison(function: Function) -> Function:
    def lowered(call: CallInfo, a: Any, b: Any) -> Any:
        compute = inputs_dtype(call)
        return function(*broadcast(convert(a, compute), convert(b, compute)))

    return lowered


for _name, _function in _COMPARE.items():
    for _overload in (".Tensor", ".Scalar"):
        put(_name + _overload, _comparison(_function), FAMILY, call=True)

_LOGICAL: dict[str, Function] = {"logical_and": lax.bitwise_and, "logical_or": lax.bitwise_or, "logical_xor": lax.bitwise_xor}
for _name, _function in _LOGICAL.items():
    put(_name, lambda a, b, function=_function: function(*broadcast(a != 0, b != 0)), FAMILY)

# ---- Three and more ----


@lowers("where.self", call=True)
def _where(call: CallInfo, condition: Any, a: Any, b: Any) -> Any:
    out = result_dtype(call)
    condition = condition if condition.dtype == jnp.bool_ else condition != 0
    return lax.select_n(*_picked(condition, convert(a, out), convert(b, out)))


def _picked(condition: Any, yes: Any, no: Any) -> tuple[Any, Any, Any]:
    condition, yes, no = broadcast(condition, yes, no)
    return condition, no, yes


@lowers("where.Scalar", "where.ScalarSelf", "where.ScalarOther", call=True)
def _where_scalar(call: CallInfo, condition: Any, a: Any, b: Any) -> Any:
    return _where(call, condition, a, b)


@lowers("masked_fill.Scalar", "masked_fill.Tensor", call=True)
def _masked_fill(call: CallInfo, x: Any, mask: Any, value: Any) -> Any:
    return _where(call, mask, value, x)


@lowers("clamp", "clamp.Tensor", "clip", "clip.Tensor", call=True)
def _clamp(call: CallInfo, x: Any, min: Any = None, max: Any = None) -> Any:
    out = result_dtype(call)
    x = convert(x, out)
    if min is not None:
        x = lax.max(*broadcast(x, convert(min, out)))
    if max is not None:
        x = lax.min(*broadcast(x, convert(max, out)))
    return x


@lowers("clamp_min", "clamp_min.Tensor", call=True)
def _clamp_min(call: CallInfo, x: Any, min: Any) -> Any:
    return _clamp(call, x, min)


@lowers("clamp_max", "clamp_max.Tensor", call=True)
def _clamp_max(call: CallInfo, x: Any, max: Any) -> Any:
    return _clamp(call, x, None, max)


@lowers("addcmul", call=True)
def _addcmul(call: CallInfo, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    out = result_dtype(call)
    x, a, b = broadcast(*(convert(item, wide(out)) for item in (x, a, b)))
    return convert(x + a * b * convert(value, x.dtype), out)


@lowers("addcdiv", call=True)
def _addcdiv(call: CallInfo, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    out = result_dtype(call)
    x, a, b = broadcast(*(convert(item, wide(out)) for item in (x, a, b)))
    return convert(x + a / b * convert(value, x.dtype), out)


@lowers("lerp.Scalar", "lerp.Tensor", call=True)
def _lerp(call: CallInfo, start: Any, end: Any, weight: Any) -> Any:
    out = result_dtype(call)
    start, end, weight = broadcast(*(convert(item, wide(out)) for item in (start, end, weight)))
    near = start + weight * (end - start)
    far = end - (end - start) * (1 - weight)
    small = jnp.abs(weight) < 0.5
    return convert(jnp.where(small, near, far), out)
