"""Sorting, selection and order statistics."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering import custom_calls
from torch_neuronx.lowering.promotion import dim_of, is_float
from torch_neuronx.lowering.table import CallInfo, lowers


def sort_with_indices(x: Any, dim: int, descending: bool = False) -> tuple[Any, Any]:
    """Values and int64 indices, stable in both directions; NaN is the largest."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim = dim_of(dim, x.ndim)
    places = lax.broadcasted_iota(jnp.int64, x.shape, dim)
    narrow = x.dtype == jnp.bool_
    key = x.astype(jnp.uint8) if narrow else x
    if descending:  # sorted from the back, then turned: equal elements keep their order
        key, places = lax.rev(key, (dim,)), lax.rev(places, (dim,))
    values, indices = lax.sort((key, places), dimension=dim, is_stable=True, num_keys=1)
    if descending:
        values, indices = lax.rev(values, (dim,)), lax.rev(indices, (dim,))
    return (values != 0 if narrow else values), indices


@lowers("sort", "sort.stable")
def _sort(x: Any, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Any:
    return sort_with_indices(x, dim, descending)


@lowers("topk", call=True)
def _topk(call: CallInfo, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim = dim_of(dim, x.ndim)
    replaced = custom_calls.top_k(call, x if largest else -x, k, dim)
    if replaced is not None:
        values, indices = replaced
        return values if largest else -values, indices.astype(jnp.int64)
    values, indices = sort_with_indices(x, dim, largest)
    return lax.slice_in_dim(values, 0, k, axis=dim), lax.slice_in_dim(indices, 0, k, axis=dim)


@lowers("kthvalue", call=True)
def _kthvalue(call: CallInfo, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim = dim_of(dim, x.ndim)
    values, indices = sort_with_indices(x, dim)
    shape = tuple(call.out[0].shape)
    return tuple(lax.slice_in_dim(part, k - 1, k, axis=dim).reshape(shape) for part in (values, indices))


def _median(x: Any, dim: int, ignore_nan: bool) -> tuple[Any, Any]:
    """The lower median along ``dim``; a NaN is the answer unless it is ignored."""
    values, indices = sort_with_indices(x, dim)
    size = x.shape[dim]
    if not is_float(x):
        place = jnp.full([1 if axis == dim else length for axis, length in enumerate(x.shape)], (size - 1) // 2, jnp.int64)
    else:
        numbers = jnp.sum(~jnp.isnan(x), dim, keepdims=True, dtype=jnp.int64)
        place = jnp.where(numbers == size, (size - 1) // 2, jnp.maximum(numbers - 1, 0) // 2 if ignore_nan else numbers)
    return jnp.take_along_axis(values, place, axis=dim), jnp.take_along_axis(indices, place, axis=dim)


def _median_dim(call: CallInfo, x: Any, dim: int, ignore_nan: bool) -> Any:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    shape = tuple(call.out[0].shape)
    return tuple(part.reshape(shape) for part in _median(x, dim_of(dim, x.ndim), ignore_nan))


@lowers("median.dim", call=True)
def _median_of_dim(call: CallInfo, x: Any, dim: int, keepdim: bool = False) -> Any:
    return _median_dim(call, x, dim, ignore_nan=False)


@lowers("nanmedian.dim", call=True)
def _nanmedian_of_dim(call: CallInfo, x: Any, dim: int, keepdim: bool = False) -> Any:
    return _median_dim(call, x, dim, ignore_nan=True)


def _median_of_all(x: Any, ignore_nan: bool) -> Any:
    if x.size == 0:
        return jnp.full((), math.nan, x.dtype) if is_float(x) else jnp.full((), jnp.iinfo(x.dtype).min, x.dtype)
    return _median(x.reshape(-1), 0, ignore_nan)[0].reshape(())


@lowers("median")
def _median_all(x: Any) -> Any:
    return _median_of_all(x, ignore_nan=False)


@lowers("nanmedian")
def _nanmedian_all(x: Any) -> Any:
    return _median_of_all(x, ignore_nan=True)


@lowers("mode", call=True)
def _mode(call: CallInfo, x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent value, the smallest of equals, and the index of its last occurrence."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim = dim_of(dim, x.ndim)
    values, indices = sort_with_indices(x, dim)
    moved, places = jnp.moveaxis(values, dim, -1), jnp.moveaxis(indices, dim, -1)
    counts = jnp.sum(moved[..., :, None] == moved[..., None, :], -1)
    best = jnp.argmax(counts, -1, keepdims=True)
    value = jnp.take_along_axis(moved, best, axis=-1)
    last = jnp.max(jnp.where(moved == value, places, -1), -1)
    shape = tuple(call.out[0].shape)
    return value.reshape(shape), last.reshape(shape)
