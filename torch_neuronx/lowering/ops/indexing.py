"""Gather, scatter, and what is written in their terms. Negative indices count from the end where PyTorch lets them."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import broadcast, convert, dim_of, expand, is_float, wide
from torch_neuronx.lowering.table import CallInfo, NotLowered, lowers


def _wrapped(index: Any, size: int) -> Any:
    return jnp.where(index < 0, index + size, index)


def _grid(index: Any, dim: int) -> list[Any]:
    """Coordinates of ``gather``-like ops: each dimension's own position, and ``index`` along ``dim``."""
    return [index if axis == dim else lax.broadcasted_iota(index.dtype, index.shape, axis) for axis in range(index.ndim)]


# ---- index and index_put ----


def _split_mask(name: str, x: Any, indices: list[Any]) -> None:
    for index in indices:
        if index is not None and index.dtype in (jnp.bool_, jnp.uint8):
            raise NotLowered(name, "the number of elements that a mask selects depends on data; use torch.where or masked_fill")


def _coordinates(x: Any, indices: list[Any]) -> tuple[Any, ...]:
    """Indices for jnp's indexing, which places the result dimensions as PyTorch does."""
    places: list[Any] = [slice(None) if index is None else index for index in indices]
    arrays = [index for index in indices if index is not None]
    shape = lax.broadcast_shapes(*(index.shape for index in arrays)) if arrays else ()
    for axis, index in enumerate(indices):
        if index is not None:
            index = index if jnp.issubdtype(index.dtype, jnp.signedinteger) else index.astype(jnp.int64)
            places[axis] = expand(_wrapped(index, x.shape[axis]), shape)
    return tuple(places)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def _index(x: Any, indices: list[Any]) -> Any:
    _split_mask("aten::index.Tensor", x, indices)
    return x.at[_coordinates(x, indices)].get(mode="clip")


@lowers("index_put", "_unsafe_index_put", "_index_put_impl")
def _index_put(x: Any, indices: list[Any], values: Any, accumulate: bool = False, unsafe: bool = False) -> Any:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype in (jnp.bool_, jnp.uint8) and values.size == 1:
        mask = indices[0] != 0
        mask = expand(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x.shape)
        value = convert(values.reshape(()), x.dtype)
        return jnp.where(mask, x + value if accumulate else value, x)
    _split_mask("aten::index_put", x, indices)
    places = x.at[_coordinates(x, indices)]
    values = convert(values, x.dtype)
    return _added(places, values) if accumulate else places.set(values)


def _added(places: Any, values: Any) -> Any:
    """Sums at places that may repeat; of bools, whether any is true."""
    return places.max(values) if values.dtype == jnp.bool_ else places.add(values)


@lowers("take")
def _take(x: Any, index: Any) -> Any:
    return x.reshape(-1).at[_wrapped(index, x.size)].get(mode="clip")


@lowers("put")
def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat = x.reshape(-1).at[_wrapped(index, x.size).reshape(-1)]
    source = source.reshape(-1)
    return (_added(flat, source) if accumulate else flat.set(source)).reshape(x.shape)


# ---- gather and scatter ----


@lowers("gather")
def _gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    if index.ndim == 0 or x.ndim == 0:
        return x.reshape(-1)[index.reshape(-1)].reshape(index.shape)
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    dim = dim_of(dim, x.ndim)
    return x.at[tuple(_grid(_wrapped(index, x.shape[dim]), dim))].get(mode="clip")


def _scattered(x: Any, dim: int, index: Any, source: Any, how: str) -> Any:
    if index.size == 0:
        return x
    if x.ndim == 0:
        return _scattered(x.reshape(1), 0, index.reshape(1), source.reshape(-1)[:1], how).reshape(())
    index = index.reshape(1) if index.ndim == 0 else index
    dim = dim_of(dim, x.ndim)
    if source.ndim:
        source = lax.slice(source, [0] * source.ndim, index.shape)
    places = x.at[tuple(_grid(_wrapped(index, x.shape[dim]), dim))]
    source = convert(source, x.dtype)
    if x.dtype == jnp.bool_ and how in ("add", "multiply"):
        how = "max" if how == "add" else "min"
    return getattr(places, how)(source)


@lowers("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def _scatter(x: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None) -> Any:
    source = value if src is None else src
    source = source if hasattr(source, "dtype") else convert(source, x.dtype)
    return _scattered(x, dim, index, source, {None: "set", "add": "add", "multiply": "multiply"}[reduce])


@lowers("scatter_add")
def _scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    return _scattered(x, dim, index, src, "add")


@lowers("scatter_reduce.two")
def _scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    if index.size == 0:
        return x
    base, ones = x, jnp.ones(src.shape if src.ndim else (), x.dtype)
    touched = _scattered(jnp.zeros(x.shape, jnp.int32), dim, index, jnp.ones(src.shape, jnp.int32), "add")
    if not include_self:
        start = {"sum": 0, "mean": 0, "prod": 1, "amax": _extreme(x.dtype, False), "amin": _extreme(x.dtype, True)}[reduce]
        base = jnp.where(touched > 0, jnp.asarray(start, x.dtype), x)
    how = {"sum": "add", "mean": "add", "prod": "multiply", "amax": "max", "amin": "min"}[reduce]
    result = _scattered(base, dim, index, src, how)
    if reduce != "mean":
        return result
    del ones
    number = jnp.maximum(touched + (1 if include_self else 0), 1).astype(wide(x.dtype))
    work = convert(result, wide(x.dtype)) / number if is_float(x) else jnp.floor_divide(result, number.astype(x.dtype))
    return jnp.where(touched > 0, convert(work, x.dtype), result)


def _extreme(dtype: Any, largest: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf if largest else -jnp.inf
    if dtype == jnp.bool_:
        return largest
    return jnp.iinfo(dtype).max if largest else jnp.iinfo(dtype).min


@lowers("masked_scatter")
def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    x, mask = broadcast(x, mask)
    flat = mask.reshape(-1)
    place = jnp.maximum(lax.cumsum(flat.astype(jnp.int32), 0) - 1, 0)
    values = source.reshape(-1).at[place].get(mode="clip") if source.size else jnp.zeros(flat.shape, x.dtype)
    return jnp.where(flat, values, x.reshape(-1)).reshape(x.shape)


@lowers("masked_scatter_backward")
def _masked_scatter_backward(gradient: Any, mask: Any, sizes: Any) -> Any:
    """Gradients under the mask, in order, padded with zeros."""
    gradient, mask = broadcast(gradient, mask)
    flat = mask.reshape(-1)
    total = math.prod(sizes)
    place = jnp.where(flat, lax.cumsum(flat.astype(jnp.int32), 0) - 1, total)
    return jnp.zeros((total,), gradient.dtype).at[place].set(gradient.reshape(-1), mode="drop").reshape(tuple(sizes))


@lowers("nonzero_static")
def _nonzero_static(x: Any, *, size: int, fill_value: int = -1) -> Any:
    if x.size == 0 or x.ndim == 0:
        return jnp.full((size, x.ndim), fill_value, jnp.int64)
    return jnp.stack(jnp.nonzero(x != 0, size=size, fill_value=fill_value), -1).astype(jnp.int64)


# ---- along one dimension ----


@lowers("repeat_interleave.Tensor")
def _repeat_interleave(repeats: Any, *, output_size: int) -> Any:
    return jnp.repeat(jnp.arange(repeats.shape[0], dtype=repeats.dtype), repeats, total_repeat_length=output_size)


@lowers("index_select")
def _index_select(x: Any, dim: int, index: Any) -> Any:
    if x.ndim == 0:
        return x
    return jnp.take(x, index.reshape(-1), axis=dim_of(dim, x.ndim), mode="clip")


def _along(x: Any, dim: int, index: Any) -> Any:
    return x.at[(slice(None),) * dim_of(dim, x.ndim) + (_wrapped(index.reshape(-1), x.shape[dim]),)]


def _indexed(x: Any, dim: int, index: Any, source: Any, how: str) -> Any:
    if x.ndim == 0:
        return _indexed(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), how).reshape(())
    source = source.reshape(1) if source.ndim == 0 and index.size == 1 and x.ndim == 1 else source
    return getattr(_along(x, dim, index), how)(convert(source, x.dtype))


@lowers("index_add")
def _index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    source = source if isinstance(alpha, (int, float)) and alpha == 1 else source * convert(alpha, source.dtype)
    return _indexed(x, dim, index, source, "max" if x.dtype == jnp.bool_ else "add")


@lowers("index_copy")
def _index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    return _indexed(x, dim, index, source, "set")


@lowers("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    value = convert(value, x.dtype)
    if x.ndim == 0:
        return value.reshape(()) if index.size else x
    return _along(x, dim, index).set(value)


@lowers("index_reduce")
def _index_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    if x.ndim == 0:
        return _index_reduce(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self).reshape(())
    dim = dim_of(dim, x.ndim)
    spread = expand(index.reshape([-1 if axis == dim else 1 for axis in range(x.ndim)]), source.shape)
    if index.size == 0:
        return x
    how = {"prod": "prod", "mean": "mean", "amax": "amax", "amin": "amin"}[reduce]
    return _scatter_reduce(x, dim, spread, source, how, include_self=include_self)


# ---- a part replaced ----


@lowers("slice_scatter")
def _slice_scatter(x: Any, source: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    places = [slice(None)] * x.ndim
    places[dim_of(dim, x.ndim)] = slice(start, end, step)
    return x.at[tuple(places)].set(convert(source, x.dtype))


@lowers("select_scatter")
def _select_scatter(x: Any, source: Any, dim: int, index: int) -> Any:
    dim = dim_of(dim, x.ndim)
    return lax.dynamic_update_index_in_dim(x, convert(source, x.dtype), index + x.shape[dim] if index < 0 else index, dim)


@lowers("diagonal_scatter")
def _diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    size = source.shape[-1]
    index = lax.iota(jnp.int32, size)
    rows, columns = index + max(0, -offset), index + max(0, offset)
    return jnp.moveaxis(moved.at[..., rows, columns].set(convert(source, x.dtype)), (-2, -1), (dim1, dim2))


@lowers("as_strided_scatter", call=True)
def _as_strided_scatter(call: CallInfo, x: Any, source: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    from torch_neuronx.lowering import views
    from torch_neuronx.lowering.tracer import place_of

    place = place_of(call.args[0])
    flat = views.write(jnp.zeros((max(place.span, _reach(size, stride, storage_offset)),), x.dtype), place, x)
    window = views.Geometry(tuple(size), tuple(stride), place.offset if storage_offset is None else storage_offset)
    return views.read(views.write(flat, window, convert(source, x.dtype)), place)


def _reach(size: Any, stride: Any, offset: int | None) -> int:
    return (offset or 0) + 1 + sum((s - 1) * t for s, t in zip(size, stride, strict=True))


# ---- search ----


@lowers("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    sequence: Any, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    """How many elements of the sorted last dimension come before each value."""
    right = right or side == "right"
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, axis=-1)
    scalar = not hasattr(values, "dtype")
    values = convert(values, sequence.dtype) if scalar else values
    common = jnp.promote_types(sequence.dtype, values.dtype)
    sequence, wanted = sequence.astype(common), values.astype(common)
    if sequence.ndim == 1:
        before = (sequence <= wanted[..., None]) if right else (sequence < wanted[..., None])
        before = ~((sequence > wanted[..., None]) if right else (sequence >= wanted[..., None])) if is_float(sequence) else before
    else:
        before = sequence[..., None, :] <= wanted[..., :, None] if right else sequence[..., None, :] < wanted[..., :, None]
    return jnp.sum(before, -1, dtype=jnp.int32 if out_int32 else jnp.int64)


@lowers("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(values: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return _searchsorted(boundaries, values, out_int32=out_int32, right=right)


@lowers("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def _isin(elements: Any, tests: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    elements = elements if hasattr(elements, "dtype") else convert(elements, tests.dtype)
    tests = tests if hasattr(tests, "dtype") else convert(tests, elements.dtype)
    found = jnp.any(elements[..., None] == tests.reshape(-1), -1)
    return ~found if invert else found
