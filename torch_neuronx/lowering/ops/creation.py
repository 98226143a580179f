"""New tensors: filled, counted, copied, converted."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.promotion import constant, convert, expand, result_dtype, widest
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
    count = jnp.arange(call.out.shape[0], dtype=jnp.int64 if whole else widest(call))
    return convert(count * convert(step, count.dtype) + convert(start, count.dtype), out)


def _between(call: CallInfo, start: Any, end: Any, steps: int) -> Any:
    """``steps`` numbers from both ends towards the middle, as PyTorch's kernel counts them; wide."""
    work = jnp.complex128 if jnp.issubdtype(result_dtype(call), jnp.complexfloating) else widest(call)
    start, end = convert(start, work), convert(end, work)
    if steps < 2:
        return start.reshape(1)[:steps]
    step = (end - start) / constant(steps - 1, work)
    up = convert(lax.iota(jnp.int32, steps), work)
    down = convert(steps - 1 - lax.iota(jnp.int32, steps), work)
    return jnp.where(up.real < steps // 2, start + step * up, end - step * down)


@lowers("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor", call=True)
def _linspace(call: CallInfo, start: Any, end: Any, steps: int, **_: Any) -> Any:
    return convert(_between(call, start, end, steps), result_dtype(call))


@lowers("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor", call=True)
def _logspace(call: CallInfo, start: Any, end: Any, steps: int, base: float = 10.0, **_: Any) -> Any:
    exponent = _between(call, start, end, steps)
    return convert(jnp.power(constant(base, exponent.dtype), exponent), result_dtype(call))


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
