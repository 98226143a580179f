"""Element-wise functions and reductions. Each is also the token of its operator (``op=nl.add``)."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch_neuronx.nki import dtypes, isa, numerics, ops
from torch_neuronx.nki.language._memory import ndarray, sbuf
from torch_neuronx.nki.tensor import NkiTensor

Value = NkiTensor | float | int

_WIDTH = {"float32": 4, "tfloat32": 4, "bfloat16": 3, "float16": 3, "float8_e4m3": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}


def promote(a: str, b: str) -> str:
    """The dtype of ``a op b`` for tiles of two dtypes: floats win, then the wider one; equally wide ones meet in the next wider."""
    if a == b:
        return a
    one, two = dtypes.dtype(a), dtypes.dtype(b)
    if one.is_float != two.is_float:
        return a if one.is_float else b
    if one.is_float:
        if _WIDTH[a] != _WIDTH[b]:
            return a if _WIDTH[a] > _WIDTH[b] else b
        return "float32" if _WIDTH[a] > 1 else "bfloat16"
    if one.bytes == two.bytes:
        return "float32" if one.bytes == 4 else f"int{16 * one.bytes}"
    return a if one.bytes > two.bytes else b


def _tile(shape: Sequence[int], dtype: Any) -> NkiTensor:
    return ndarray(tuple(shape), dtype, buffer=sbuf)


def _broadcast(x: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """Free dimensions of size 1 as stride-0 views of ``shape``."""
    for dim, (have, want) in enumerate(zip(x.shape, shape, strict=True)):
        if have == 1 and want != 1 and dim:
            x = x.broadcast(dim, want)
    return x


def _joint_shape(x: NkiTensor, y: NkiTensor) -> tuple[int, ...]:
    return tuple(builtins.max(a, b) for a, b in zip(x.shape, y.shape, strict=True)) if x.ndim == y.ndim else x.shape


def apply_binary(op: Any, x: Value, y: Value, dtype: Any = None) -> NkiTensor:
    """``x op y`` as a new tile: two tiles (free dimensions of size 1 broadcast), or a tile and a number."""
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        shape = _joint_shape(x, y)
        if x.ndim == y.ndim:
            x, y = _broadcast(x, shape), _broadcast(y, shape)
        out = _tile(shape, dtype or promote(x.dtype, y.dtype))
        isa.tensor_tensor(out, x, y, op)
        return out
    if not isinstance(x, NkiTensor) and not isinstance(y, NkiTensor):
        raise TypeError(f"nl.{ops.token(op)} needs at least one tile, got {x!r} and {y!r}")
    tile, number, reverse = (x, y, False) if isinstance(x, NkiTensor) else (y, x, True)
    assert isinstance(tile, NkiTensor)
    out = _tile(tile.shape, dtype or tile.dtype)
    isa.tensor_scalar(out, tile, op, number, reverse0=reverse)
    return out


def _binary(name: str, text: str) -> Callable[..., Any]:
    def function(x: Value, y: Value, dtype: Any = None) -> NkiTensor:
        return apply_binary(function, x, y, dtype)

    return _named(function, name, f"{text}, element by element: two tiles of one shape, or a tile and a number; ``dtype`` of the result.")


def _named(function: Any, name: str, text: str, op: str | None = None) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    function.nki_op = op or name
    return function


add = _binary("add", "x + y")
subtract = _binary("subtract", "x - y")
multiply = _binary("multiply", "x * y")
divide = _binary("divide", "x / y (not on hardware: multiply by the reciprocal)")
maximum = _binary("maximum", "The larger one")
minimum = _binary("minimum", "The smaller one")
abs_max = _binary("abs_max", "The one of larger magnitude; a tie gives y (trn3)")
abs_min = _binary("abs_min", "The one of smaller magnitude; a tie gives y (trn3)")
power = _binary("power", "x ** y (two tiles, on GpSimd)")
fmod = _binary("fmod", "The remainder with the sign of x (simulation only)")
mod = _binary("mod", "The remainder with the sign of y (simulation only)")
equal = _binary("equal", "x == y as 1 and 0")
not_equal = _binary("not_equal", "x != y as 1 and 0")
less = _binary("less", "x < y as 1 and 0")
less_equal = _binary("less_equal", "x <= y as 1 and 0")
greater = _binary("greater", "x > y as 1 and 0")
greater_equal = _binary("greater_equal", "x >= y as 1 and 0")
bitwise_and = _binary("bitwise_and", "x & y of integers")
bitwise_or = _binary("bitwise_or", "x | y of integers")
bitwise_xor = _binary("bitwise_xor", "x ^ y of integers")
left_shift = _binary("left_shift", "x << y of integers")
right_shift = _binary("right_shift", "The logical x >> y of integers")
logical_and = _binary("logical_and", "x and y of 0 and 1")
logical_or = _binary("logical_or", "x or y of 0 and 1")
logical_xor = _binary("logical_xor", "x xor y of 0 and 1")


def _with_number(name: str, op: Any, number: float | None, text: str, **options: Any) -> Callable[..., Any]:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        out = _tile(x.shape, dtype or x.dtype)
        isa.tensor_scalar(out, x, function if op is None else op, number, **options)
        return out

    return _named(function, name, text)


invert = _with_number("invert", bitwise_xor, -1, "~x: exclusive or with all ones.")
logical_not = _with_number("logical_not", logical_xor, 1.0, "x xor 1, for x of 0 and 1; for other values use ``equal(x, 0)``.")
negative = _with_number("negative", multiply, -1.0, "-x.")


def _activation(name: str, text: str) -> Callable[..., Any]:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        out = _tile(x.shape, dtype or x.dtype)
        isa.activation(out, function, x)
        return out

    return _named(function, name, f"{text}, on the Scalar engine; ``dtype`` defaults to that of x.")


abs = _activation("abs", "The absolute value")
square = _activation("square", "x * x")
exp = _activation("exp", "e ** x")
log = _activation("log", "The natural logarithm")
sqrt = _activation("sqrt", "The square root")
tanh = _activation("tanh", "The hyperbolic tangent")
sigmoid = _activation("sigmoid", "1 / (1 + e ** -x)")
relu = _activation("relu", "max(x, 0)")
gelu = _activation("gelu", "x * Phi(x), by erf")
gelu_apprx_sigmoid = _activation("gelu_apprx_sigmoid", "x * sigmoid(1.702 x)")
gelu_apprx_tanh = _activation("gelu_apprx_tanh", "gelu by its tanh approximation")
gelu_dx = _activation("gelu_dx", "The derivative of gelu")
gelu_apprx_sigmoid_dx = _activation("gelu_apprx_sigmoid_dx", "The derivative of gelu_apprx_sigmoid")
silu = _activation("silu", "x * sigmoid(x)")
silu_dx = _activation("silu_dx", "The derivative of silu")
softplus = _activation("softplus", "log(1 + e ** x)")
mish = _activation("mish", "x * tanh(softplus(x))")
erf = _activation("erf", "The error function")
erf_dx = _activation("erf_dx", "2 / sqrt(pi) * e ** (-x * x)")
arctan = _activation("arctan", "The arctangent")
sign = _activation("sign", "-1, 0 or 1")


rsqrt = _with_number(
    "rsqrt",
    None,
    None,
    "1 / sqrt(x), on GpSimd: more precise and slower than the Scalar engine's; not from PSUM.",
    engine=isa.engine.gpsimd,
)


def _reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    out = _tile(x.shape, dtype or x.dtype)
    isa.reciprocal(out, x)
    return out


reciprocal = _named(_reciprocal, "reciprocal", "1 / x, on the Vector engine.")


def _copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    out = _tile(x.shape, dtype or x.dtype)
    isa.tensor_copy(out, x)
    return out


copy = _named(_copy, "copy", "A copy in SBUF, also of PSUM.")

_ROUND = 1.5 * 2**23  # adding and subtracting it rounds a float32 of magnitude below 2**22 to the nearest integer


def _rounded(x: NkiTensor) -> NkiTensor:
    out = _tile(x.shape, "float32")
    isa.tensor_scalar(out, x, add, _ROUND)  # stored as float32, so that the sum is rounded
    isa.tensor_scalar(out, out, subtract, _ROUND)
    return out


def _integral(name: str, text: str, correct: Callable[[NkiTensor, NkiTensor], NkiTensor]) -> Callable[..., Any]:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        nearest = _rounded(x)
        small = correct(nearest, x)
        large = apply_binary(greater_equal, abs(x, dtype="float32"), 2.0**22, dtype="uint8")  # integers already
        out = _tile(x.shape, dtype or x.dtype)
        chosen = _tile(x.shape, "float32")
        isa.tensor_copy(chosen, small)
        wide = _tile(x.shape, "float32")
        isa.tensor_copy(wide, x)
        isa.tensor_copy_predicated(chosen, wide, large)
        isa.tensor_copy(out, chosen)
        return out

    return _named(function, name, f"{text}, by a few Vector instructions.")


def _floor(nearest: NkiTensor, x: NkiTensor) -> NkiTensor:
    return apply_binary(subtract, nearest, apply_binary(greater, nearest, x, dtype="float32"), dtype="float32")


def _ceil(nearest: NkiTensor, x: NkiTensor) -> NkiTensor:
    return apply_binary(add, nearest, apply_binary(less, nearest, x, dtype="float32"), dtype="float32")


def _trunc(nearest: NkiTensor, x: NkiTensor) -> NkiTensor:
    magnitude = abs(x, dtype="float32")
    return apply_binary(multiply, _floor(_rounded(magnitude), magnitude), sign(x, dtype="float32"), dtype="float32")


floor = _integral("floor", "The largest integer up to x", _floor)
ceil = _integral("ceil", "The smallest integer from x on", _ceil)
trunc = _integral("trunc", "x rounded toward zero", _trunc)


def _reduce_angle(x: NkiTensor, shift: float) -> NkiTensor:
    """``x + shift`` brought into [-pi, pi]: the Scalar engine knows the sine only there."""
    shifted = apply_binary(add, x, shift, dtype="float32") if shift else x
    turns = floor(apply_binary(add, apply_binary(multiply, shifted, 1 / (2 * math.pi), dtype="float32"), 0.5, dtype="float32"))
    out = _tile(x.shape, "float32")
    high = 6.28125  # 2 pi in two parts, so that the product with the number of turns is exact
    isa.scalar_tensor_tensor(out, turns, multiply, -high, add, shifted)
    isa.scalar_tensor_tensor(out, turns, multiply, -(2 * math.pi - high), add, out)
    return out


def _sin(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    out = _tile(x.shape, dtype or x.dtype)
    isa.activation(out, sin, _clamped(_reduce_angle(x, 0.0)))
    return out


def _clamped(x: NkiTensor) -> NkiTensor:
    out = _tile(x.shape, "float32")
    isa.tensor_scalar(out, x, minimum, math.pi, op1=maximum, operand1=-math.pi)
    return out


sin = _named(_sin, "sin", "The sine of any x: the range is reduced first.")


def _cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    out = _tile(x.shape, dtype or x.dtype)
    isa.activation(out, sin, _clamped(_reduce_angle(x, math.pi / 2)))
    return out


cos = _named(_cos, "cos", "The cosine of any x.")


def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The tangent of any x."""
    return apply_binary(multiply, sin(x, dtype="float32"), reciprocal(cos(x, dtype="float32")), dtype=dtype or x.dtype)


# Reductions. The axes are the last free dimensions.


def _axes(x: NkiTensor, axis: Any) -> list[int]:
    given = axis if isinstance(axis, Sequence) else [axis]
    return sorted(int(a) + x.ndim * (int(a) < 0) for a in given)


def _reduced_shape(x: NkiTensor, axes: list[int], keepdims: bool) -> tuple[int, ...]:
    shape = [1 if d in axes else n for d, n in enumerate(x.shape)]
    kept = shape if keepdims else [n for d, n in enumerate(shape) if d not in axes]
    return tuple(kept if len(kept) >= 2 else [*kept, 1])


def reduce(op: Any, x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Any reducible operator over the last free dimensions."""
    out = _tile(_reduced_shape(x, _axes(x, axis), keepdims), dtype or x.dtype)
    isa.tensor_reduce(out, op, x, axis=axis)
    return out


def _reduction(name: str, text: str, op: str) -> Callable[..., Any]:
    def function(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
        return reduce(function, x, axis, dtype, keepdims)

    return _named(function, name, f"{text} over ``axis``, the last free dimensions.", op)


sum = _reduction("sum", "The sum", "add")
max = _reduction("max", "The maximum", "maximum")
min = _reduction("min", "The minimum", "minimum")
prod = _reduction("prod", "The product", "multiply")


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
    """1 where no element over ``axis`` is 0."""
    return reduce(logical_and, x, axis, dtype)


def _count(x: NkiTensor, axis: Any) -> int:
    return math.prod(x.shape[a] for a in _axes(x, axis))


def mean(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The mean over ``axis``, by a float32 sum."""
    total = reduce(add, x, axis, "float32", keepdims)
    return apply_binary(multiply, total, 1.0 / _count(x, axis), dtype=dtype or x.dtype)


def var(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The variance (of the population) over ``axis``; the dimensions are kept whatever ``keepdims`` says."""
    average = mean(x, axis, "float32", keepdims=True)
    centred = apply_binary(subtract, x, average, dtype="float32")
    total = reduce(add, apply_binary(multiply, centred, centred, dtype="float32"), axis, "float32", keepdims=True)
    return apply_binary(multiply, total, 1.0 / _count(x, axis), dtype=dtype or x.dtype)


# Composites.


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """The softmax over the last free dimensions."""
    peak = reduce(maximum, x, axis, "float32", keepdims=True)
    shifted = apply_binary(subtract, x, peak, dtype="float32")
    powers = exp(shifted)
    total = reciprocal(reduce(add, powers, axis, "float32", keepdims=True))
    return apply_binary(multiply, powers, total, dtype=dtype or x.dtype)


def rms_norm(
    x: NkiTensor, w: NkiTensor, axis: Any, n: int, epsilon: float = 1e-06, dtype: Any = None, compute_dtype: Any = None
) -> NkiTensor:
    """``x / sqrt(mean(x * x) + epsilon) * w``, the mean over ``n`` values of ``axis``."""
    inner = compute_dtype or "float32"
    total = reduce(add, apply_binary(multiply, x, x, dtype=inner), axis, "float32", keepdims=True)
    scale = _tile(total.shape, "float32")
    isa.tensor_scalar(scale, total, multiply, 1.0 / n, op1=add, operand1=epsilon)
    isa.activation(scale, rsqrt, scale)
    return apply_binary(multiply, apply_binary(multiply, x, scale, dtype=inner), w, dtype=dtype or x.dtype)


def where(condition: NkiTensor, x: Value, y: Value, dtype: Any = None) -> NkiTensor:
    """x where ``condition`` (a tile of 1 and 0) holds, else y; each a tile or a number."""
    tiles = [v for v in (x, y) if isinstance(v, NkiTensor)]
    result = dtype or (promote(tiles[0].dtype, tiles[-1].dtype) if tiles else "float32")
    shape = condition.shape
    for tile in tiles:
        shape = _joint_shape(tile, condition) if tile.ndim == condition.ndim else shape
    mask = _tile(shape, "uint8")
    isa.tensor_scalar(mask, _broadcast(condition, shape), not_equal, 0.0)
    out, chosen = _tile(shape, result), _tile(shape, result)
    for target, value in ((out, y), (chosen, x)):
        if isinstance(value, NkiTensor):
            isa.tensor_copy(target, _broadcast(value, shape))
        else:
            isa.memset(target, value)
    isa.tensor_copy_predicated(out, chosen, mask)
    return out


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """Sets elements to 0 with probability ``rate`` (a number or a (P, 1) tile); others are not scaled."""
    out = _tile(x.shape, x.dtype)
    isa.dropout(out, x, rate)
    return copy(out, dtype=dtype) if dtype is not None and dtypes.dtype(dtype).name != x.dtype else out


def _token(name: str, text: str) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise TypeError(f"nl.{name} is an op token: give it to an instruction, do not call it")

    return _named(function, name, text)


average = _token("average", "Token: the mean, for ``tensor_partition_reduce``.")
prelu = _token("prelu", "Token: x above 0, else ``relu_param * x``, for ``activate2``.")
bypass = _token("bypass", "Token: the first operand as it is.")

__all__ = [name for name, value in list(globals().items()) if hasattr(value, "nki_op") or name in (
    "all", "tan", "mean", "var", "softmax", "rms_norm", "where", "dropout"
)]  # fmt: skip
assert set(numerics.ACTIVATIONS) <= set(__all__), "every activation function has its token"
