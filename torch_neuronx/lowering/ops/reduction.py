"""Sums, extrema, moments, scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering import custom_calls
from torch_neuronx.lowering.promotion import convert, dim_of, dims_of, is_complex, is_float, result_dtype, wide
from torch_neuronx.lowering.table import CallInfo, lowers


def _shaped(call: CallInfo, value: Any, index: int = 0) -> Any:
    """With the dimensions of size 1 that ``keepdim`` asks for."""
    out = call.out[index] if isinstance(call.out, (list, tuple)) else call.out
    return value.reshape(tuple(out.shape))


def count(x: Any, dims: list[int]) -> int:
    return math.prod(x.shape[dim] for dim in dims)


def _summed(x: Any, dims: list[int]) -> Any:
    return jnp.sum(x, tuple(dims), dtype=x.dtype)


@lowers("sum", "sum.dim_IntList", call=True)
def _sum(call: CallInfo, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    out = result_dtype(call)
    return _shaped(call, convert(_summed(convert(x, wide(out)), dims_of(dim, x.ndim)), out))


@lowers("nansum", call=True)
def _nansum(call: CallInfo, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x = jnp.where(jnp.isnan(x), jnp.zeros_like(x), x) if is_float(x) else x
    return _sum(call, x, dim, keepdim)


@lowers("mean", "mean.dim", call=True)
def _mean(call: CallInfo, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    out = result_dtype(call)
    dims = dims_of(dim, x.ndim)
    total = _summed(convert(x, wide(out)), dims)
    return _shaped(call, convert(total / jnp.asarray(count(x, dims), total.real.dtype).astype(total.dtype), out))


@lowers("prod", "prod.dim_int", call=True)
def _prod(call: CallInfo, x: Any, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    out = result_dtype(call)
    work = convert(x, wide(out))
    if work.dtype == jnp.bool_:
        return _shaped(call, jnp.all(work, tuple(dims_of(dim, x.ndim))))
    return _shaped(call, convert(jnp.prod(work, tuple(dims_of(dim, x.ndim)), dtype=work.dtype), out))


@lowers("amax", call=True)
def _amax(call: CallInfo, x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return _shaped(call, jnp.max(x, tuple(dims_of(dim, x.ndim))))


@lowers("amin", call=True)
def _amin(call: CallInfo, x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return _shaped(call, jnp.min(x, tuple(dims_of(dim, x.ndim))))


@lowers("max")
def _max(x: Any) -> Any:
    return jnp.max(x)


@lowers("min")
def _min(x: Any) -> Any:
    return jnp.min(x)


@lowers("aminmax", call=True)
def _aminmax(call: CallInfo, x: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = tuple(dims_of(dim, x.ndim))
    return _shaped(call, jnp.min(x, dims), 0), _shaped(call, jnp.max(x, dims), 1)


def arg_extremum(call: CallInfo, x: Any, dim: int, largest: bool) -> Any:
    """int64 index of the first extremum; a NaN counts as one. (lax.argmax has the same rule for NaN.)"""
    replaced = custom_calls.arg_extremum(call, x, dim, largest)
    if replaced is not None:
        return replaced.astype(jnp.int64)
    return (lax.argmax if largest else lax.argmin)(x.astype(jnp.int8) if x.dtype == jnp.bool_ else x, dim, jnp.int64)


def _extremum(call: CallInfo, x: Any, dim: int, largest: bool) -> Any:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim = dim_of(dim, x.ndim)
    values = jnp.max(x, dim) if largest else jnp.min(x, dim)
    return _shaped(call, values, 0), _shaped(call, arg_extremum(call, x, dim, largest), 1)


@lowers("max.dim", call=True)
def _max_dim(call: CallInfo, x: Any, dim: int, keepdim: bool = False) -> Any:
    return _extremum(call, x, dim, largest=True)


@lowers("min.dim", call=True)
def _min_dim(call: CallInfo, x: Any, dim: int, keepdim: bool = False) -> Any:
    return _extremum(call, x, dim, largest=False)


def _index_of(largest: bool) -> Callable[..., Any]:
    def lowered(call: CallInfo, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        x, dim = (x.reshape(-1), 0) if dim is None or x.ndim == 0 else (x, dim_of(dim, x.ndim))
        return _shaped(call, arg_extremum(call, x, dim, largest))

    return lowered


lowers("argmax", call=True)(_index_of(largest=True))
lowers("argmin", call=True)(_index_of(largest=False))


@lowers("any", "any.dim", "any.dims", call=True)
def _any(call: CallInfo, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _shaped(call, convert(jnp.any(x != 0, tuple(dims_of(dim, x.ndim))), result_dtype(call)))


@lowers("all", "all.dim", "all.dims", call=True)
def _all(call: CallInfo, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _shaped(call, convert(jnp.all(x != 0, tuple(dims_of(dim, x.ndim))), result_dtype(call)))


@lowers("count_nonzero.dim_IntList", "count_nonzero", call=True)
def _count_nonzero(call: CallInfo, x: Any, dim: Any = None) -> Any:
    return _shaped(call, jnp.sum(x != 0, tuple(dims_of(dim, x.ndim)), dtype=jnp.int64))


# ---- Moments ----


def moments(x: Any, dims: list[int], correction: float) -> tuple[Any, Any]:
    """Variance and mean over ``dims`` (kept, with size 1), in two passes."""
    number = count(x, dims)
    mean = jnp.sum(x, tuple(dims), keepdims=True, dtype=x.dtype) / number
    centred = x - mean
    square = (centred * jnp.conj(centred)).real if is_complex(x) else centred * centred
    freedom = jnp.asarray(max(0.0, number - correction), square.dtype)
    return jnp.sum(square, tuple(dims), keepdims=True, dtype=square.dtype) / freedom, mean


def _moments(x: Any, dim: Any, correction: Any) -> tuple[Any, Any]:
    work = convert(x, wide(x.dtype))
    return moments(work, dims_of(dim, x.ndim), 1 if correction is None else float(correction))


@lowers("var.correction", call=True)
def _var(call: CallInfo, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _shaped(call, convert(_moments(x, dim, correction)[0], result_dtype(call)))


@lowers("std.correction", call=True)
def _std(call: CallInfo, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _shaped(call, convert(lax.sqrt(_moments(x, dim, correction)[0]), result_dtype(call)))


@lowers("var_mean.correction", call=True)
def _var_mean(call: CallInfo, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance, mean = _moments(x, dim, correction)
    return _shaped(call, convert(variance, result_dtype(call, 0)), 0), _shaped(call, convert(mean, result_dtype(call, 1)), 1)


@lowers("std_mean.correction", call=True)
def _std_mean(call: CallInfo, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance, mean = _moments(x, dim, correction)
    return _shaped(call, convert(lax.sqrt(variance), result_dtype(call, 0)), 0), _shaped(call, convert(mean, result_dtype(call, 1)), 1)


def p_norm(size: Any, p: Any, dims: tuple[int, ...]) -> Any:
    """Of absolute values."""
    if p == math.inf:
        return jnp.max(size, dims, initial=0)
    if p == -math.inf:
        return jnp.min(size, dims)
    if p == 0:
        return jnp.sum(size != 0, dims).astype(size.dtype)
    if p == 1:
        return jnp.sum(size, dims)
    if p == 2:
        return lax.sqrt(jnp.sum(size * size, dims))
    return jnp.power(jnp.sum(jnp.power(size, p), dims), 1.0 / p)


@lowers("linalg_vector_norm", call=True)
def _vector_norm(call: CallInfo, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    out = result_dtype(call)
    size = jnp.abs(convert(x, wide(x.dtype)))
    size = convert(size, wide(out))
    dims = tuple(dims_of(dim, x.ndim))
    return _shaped(call, convert(p_norm(size, ord, dims), out))


@lowers("logsumexp", call=True)
def _logsumexp(call: CallInfo, x: Any, dim: Any, keepdim: bool = False) -> Any:
    out = result_dtype(call)
    x = convert(x, wide(out))
    dims = tuple(dims_of(dim, x.ndim)) if x.ndim else ()
    if count(x, list(dims)) == 0:
        return jnp.full(tuple(call.out.shape), -math.inf, out)
    largest = jnp.max(x.real, dims, keepdims=True)
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    total = jnp.sum(jnp.exp(x - shift), dims, keepdims=True)
    return _shaped(call, convert(jnp.log(total) + shift, out))


# ---- Scans ----


def _scan(function: Callable[..., Any], call: CallInfo, x: Any, dim: int) -> Any:
    out = result_dtype(call)
    work = convert(x, wide(out))
    return convert(function(work, dim_of(dim, x.ndim)), out) if x.ndim else convert(work, out)


@lowers("cumsum", call=True)
def _cumsum(call: CallInfo, x: Any, dim: int, *, dtype: Any = None) -> Any:
    return _scan(lax.cumsum, call, x, dim)


@lowers("cumprod", call=True)
def _cumprod(call: CallInfo, x: Any, dim: int, *, dtype: Any = None) -> Any:
    return _scan(lax.cumprod, call, x, dim)


@lowers("logcumsumexp", call=True)
def _logcumsumexp(call: CallInfo, x: Any, dim: int) -> Any:
    if is_complex(x) and x.ndim:
        largest = jnp.max(x.real, dim, keepdims=True) if x.size else x.real
        return jnp.log(lax.cumsum(jnp.exp(x - largest), dim_of(dim, x.ndim))) + largest
    return _scan(lax.cumlogsumexp, call, x, dim)


def _running_extremum(x: Any, dim: int, largest: bool) -> Any:
    """Extremum so far and the index of its latest occurrence; NaN wins."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim = dim_of(dim, x.ndim)
    places = lax.broadcasted_iota(jnp.int64, x.shape, dim)

    def later(left: Any, right: Any) -> Any:
        value, place = right
        better = (value >= left[0]) if largest else (value <= left[0])
        better = (better | jnp.isnan(value)) & ~(jnp.isnan(left[0]) & ~jnp.isnan(value)) if is_float(x) else better
        return jnp.where(better, value, left[0]), jnp.where(better, place, left[1])

    return lax.associative_scan(later, (x, places), axis=dim)


@lowers("cummax")
def _cummax(x: Any, dim: int) -> Any:
    return _running_extremum(x, dim, largest=True)


@lowers("cummin")
def _cummin(x: Any, dim: int) -> Any:
    return _running_extremum(x, dim, largest=False)


@lowers("trace", call=True)
def _trace(call: CallInfo, x: Any) -> Any:
    out = result_dtype(call)
    return jnp.sum(convert(jnp.diagonal(x), out), dtype=out)
