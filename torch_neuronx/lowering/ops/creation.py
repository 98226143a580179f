"""New tensors: filled, counted, copied, converted."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.promotion import constant, convert, expand, result_dtype
from torch_neuronx.lowering.table import CallInfo, lowers


def _filled(call: CallInfo, value: Any) -> Any:
    filled = convert(value, result_dtype(call))
    return lax.broadcast(filled, tuple(call.out.shape)) if filled.ndim == 0 else filled


@lowers(
    "empty.memory_format",
    "empty_strided",
    "empty_permuted",
    "zeros",
    "new_zeros",
    "new_empty",
    "new_empty_strided",
    "zeros_like",
    "empty_like",
    "_efficientzerotensor",
    call=True,
)
def _zeros(call: CallInfo, *_: Any, **__: Any) -> Any:
    """What is not initialised is zero here."""
    return _filled(call, 0)


@lowers("ones", "new_ones", "ones_like", call=True)
def _ones(call: CallInfo, *_: Any, **__: Any) -> Any:
    return _filled(call, 1)


@lowers("full", "full_like", "new_full", call=True)
def _full(call: CallInfo, _like: Any, *rest: Any, **kwargs: Any) -> Any:
    return _filled(call, rest[-1] if rest else kwargs["fill_value"])


@lowers("fill.Scalar", "fill.Tensor", call=True)
def _fill(call: CallInfo, _x: Any, value: Any) -> Any:
    return _filled(call, value)


@lowers("scalar_tensor", call=True)
def _scalar_tensor(call: CallInfo, value: Any, **_: Any) -> Any:
    return convert(value, result_dtype(call))


@lowers("zero")
def _zero(x: Any) -> Any:
    return jnp.zeros_like(x)


@lowers("arange", "arange.start", "arange.start_step", call=True)
def _arange(call: CallInfo, *args: Any, **_: Any) -> Any:
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    return _steps(call, start, step)


def _steps(call: CallInfo, start: Any, step: Any) -> Any:
    """start + i * step, computed wide and then rounded."""
    out = result_dtype(call)
    whole = not jnp.issubdtype(out, jnp.inexact)
    wide = jnp.float64 if call.target == "portable" else jnp.float32  # the chip has no float64
    count = lax.iota(jnp.int64 if whole else wide, call.out.shape[0])
    return convert(count * constant(step, count.dtype) + constant(start, count.dtype), out)


@lowers("linspace", call=True)
def _linspace(call: CallInfo, start: Any, end: Any, steps: int, **_: Any) -> Any:
    """From both ends towards the middle, as PyTorch's kernel does."""
    out = result_dtype(call)
    if steps == 0:
        return jnp.zeros((0,), out)
    work = jnp.complex128 if jnp.issubdtype(out, jnp.complexfloating) else jnp.float64
    start, end = constant(start, work), constant(end, work)
    if steps == 1:
        return convert(start.reshape(1), out)
    step = (end - start) / (steps - 1)
    count = lax.iota(jnp.int64, steps)
    return convert(jnp.where(count < steps // 2, start + step * count, end - step * (steps - 1 - count)), out)


@lowers("logspace", call=True)
def _logspace(call: CallInfo, start: Any, end: Any, steps: int, base: float = 10.0, **_: Any) -> Any:
    out = result_dtype(call)
    if steps == 0:
        return jnp.zeros((0,), out)
    work = jnp.complex128 if jnp.issubdtype(out, jnp.complexfloating) else jnp.float64
    start, end = constant(start, work), constant(end, work)
    step = (end - start) / max(1, steps - 1)
    end = start if steps == 1 else end
    count = lax.iota(jnp.int64, steps)
    exponent = jnp.where(count < steps // 2, start + step * count, end - step * (steps - 1 - count))
    return convert(jnp.power(constant(base, work), exponent), out)


@lowers("eye", "eye.m", call=True)
def _eye(call: CallInfo, *_: Any, **__: Any) -> Any:
    rows, columns = call.out.shape
    ones = lax.broadcasted_iota(jnp.int32, (rows, columns), 0) == lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
    return ones.astype(result_dtype(call))


@lowers("tril_indices", call=True)
def _tril_indices(call: CallInfo, rows: int, columns: int, offset: int = 0, **_: Any) -> Any:
    return jnp.asarray(np.stack(np.tril_indices(rows, offset, columns))).astype(result_dtype(call))


@lowers("triu_indices", call=True)
def _triu_indices(call: CallInfo, rows: int, columns: int, offset: int = 0, **_: Any) -> Any:
    return jnp.asarray(np.stack(np.triu_indices(rows, offset, columns))).astype(result_dtype(call))


@lowers("copy", call=True)
def _copy(call: CallInfo, x: Any, source: Any, non_blocking: bool = False) -> Any:
    return expand(convert(source, x.dtype), x.shape)


@lowers("_to_copy", call=True)
def _to_copy(call: CallInfo, x: Any, **_: Any) -> Any:
    return convert(x, result_dtype(call))


@lowers("complex")
def _complex(real: Any, imag: Any) -> Any:
    shape = lax.broadcast_shapes(real.shape, imag.shape)
    return lax.complex(expand(real, shape), expand(imag, shape))


@lowers("polar")
def _polar(size: Any, angle: Any) -> Any:
    shape = lax.broadcast_shapes(size.shape, angle.shape)
    size, angle = expand(size, shape), expand(angle, shape)
    return lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))
