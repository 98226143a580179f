"""Pooling in 1 to 3 dimensions. Windows are few and small: one strided slice for each place in the window."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import convert, is_float, wide
from torch_neuronx.lowering.table import CallInfo, lowers


def _spread(values: Any, rank: int) -> list[int]:
    values = [values] if isinstance(values, int) else list(values)
    return values * rank if len(values) == 1 else values


def _windows(x: Any, out: Any, window: list[int], stride: list[int], pad: list[int], dilation: list[int], filler: Any) -> list[Any]:
    """For each place of the window, the elements that the outputs (spatial shape ``out``) see there; ``filler`` outside of ``x``."""
    rank = len(window)
    spatial = x.shape[-rank:]
    reach = [step * (size - 1) + gap * (places - 1) + 1 for step, size, gap, places in zip(stride, out, dilation, window, strict=True)]
    after = [max(0, end - size - before) for end, size, before in zip(reach, spatial, pad, strict=True)]
    padded = lax.pad(x, jnp.asarray(filler, x.dtype), [(0, 0, 0)] * (x.ndim - rank) + [(b, a, 0) for b, a in zip(pad, after, strict=True)])
    parts = []
    for place in itertools.product(*map(range, window)):
        starts = [0] * (x.ndim - rank) + [gap * index for gap, index in zip(dilation, place, strict=True)]
        limits = list(x.shape[: x.ndim - rank]) + [
            start + step * (size - 1) + 1 for start, step, size in zip(starts[-rank:], stride, out, strict=True)
        ]
        parts.append(lax.slice(padded, starts, limits, [1] * (x.ndim - rank) + stride))
    return parts


def _lowest(x: Any) -> Any:
    return -math.inf if is_float(x) else jnp.iinfo(x.dtype).min


def _max_pool(call: CallInfo, rank: int, x: Any, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1) -> tuple[Any, Any]:
    window = _spread(window, rank)
    stride = _spread(stride, rank) if stride else window
    padding, dilation = _spread(padding, rank), _spread(dilation, rank)
    out, spatial = tuple(call.out[0].shape[-rank:]), x.shape[-rank:]
    # Positions in the flattened plane; the first of equal values wins, and a NaN wins.
    plane = lax.iota(jnp.int64, math.prod(spatial)).reshape(spatial)
    values = _windows(x, out, window, stride, padding, dilation, _lowest(x))
    places = _windows(plane, out, window, stride, padding, dilation, -1)
    best, where = values[0], jnp.broadcast_to(places[0], values[0].shape)
    for value, place in zip(values[1:], places[1:], strict=True):
        better = (value > best) | (where < 0)
        if is_float(x):
            better = better | jnp.isnan(value)
        better = better & (place >= 0)
        best, where = jnp.where(better, value, best), jnp.where(better, place, where)
    return best, where


@lowers("max_pool2d_with_indices", call=True)
def _max_pool2d(
    call: CallInfo, x: Any, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Any, Any]:
    return _max_pool(call, 2, x, window, stride, padding, dilation)


@lowers("max_pool3d_with_indices", call=True)
def _max_pool3d(
    call: CallInfo, x: Any, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Any, Any]:
    return _max_pool(call, 3, x, window, stride, padding, dilation)


def scatter_planes(gradient: Any, indices: Any, shape: Any, rank: int) -> Any:
    """Adds each gradient at its index in the flattened plane of ``shape``."""
    lead = math.prod(shape[:-rank])
    size = math.prod(shape[-rank:])
    work = convert(gradient, wide(gradient.dtype)).reshape(lead, -1)
    rows = lax.broadcasted_iota(jnp.int32, work.shape, 0)
    zeros = jnp.zeros((lead, size), work.dtype)
    return zeros.at[rows, indices.reshape(lead, -1)].add(work).reshape(shape).astype(gradient.dtype)


@lowers("max_pool2d_with_indices_backward")
def _max_pool2d_backward(gradient: Any, x: Any, *settings: Any) -> Any:
    return scatter_planes(gradient, settings[-1], x.shape, 2)


@lowers("max_pool3d_with_indices_backward")
def _max_pool3d_backward(gradient: Any, x: Any, *settings: Any) -> Any:
    return scatter_planes(gradient, settings[-1], x.shape, 3)


@lowers("adaptive_max_pool2d_backward")
def _adaptive_max_pool2d_backward(gradient: Any, x: Any, indices: Any) -> Any:
    return scatter_planes(gradient, indices, x.shape, 2)


@lowers("adaptive_max_pool3d_backward")
def _adaptive_max_pool3d_backward(gradient: Any, x: Any, indices: Any) -> Any:
    return scatter_planes(gradient, indices, x.shape, 3)


@lowers("fractional_max_pool2d_backward")
def _fractional_max_pool2d_backward(gradient: Any, x: Any, _window: Any, _size: Any, indices: Any) -> Any:
    return scatter_planes(gradient, indices, x.shape, 2)


@lowers("fractional_max_pool3d_backward")
def _fractional_max_pool3d_backward(gradient: Any, x: Any, _window: Any, _size: Any, indices: Any) -> Any:
    return scatter_planes(gradient, indices, x.shape, 3)


def _fractional_starts(sample: Any, size: int, out: int, window: int) -> Any:
    """First element of each of ``out`` windows along one dimension, (batch, channels, out): a random walk of two step sizes."""
    if out == 1:
        return jnp.full((*sample.shape, 1), size - window, jnp.int64)
    alpha = (size - window) / (out - 1)
    index = lax.iota(sample.dtype, out)
    starts = jnp.floor((index + sample[..., None]) * alpha) - jnp.floor(sample[..., None] * alpha)
    return jnp.where(index == out - 1, size - window, starts).astype(jnp.int64)


def _fractional_max_pool(x: Any, window: list[int], size: list[int], samples: Any) -> tuple[Any, Any]:
    rank = len(window)
    batched = x if x.ndim == rank + 2 else x[None]
    spatial = batched.shape[-rank:]
    order = range(rank) if rank == 3 else (1, 0)  # samples name the width first in two dimensions
    index: Any = jnp.zeros((1,), jnp.int64)
    flat: Any = None
    for dim, which in enumerate(order):
        starts = _fractional_starts(samples[..., which], spatial[dim], size[dim], window[dim])
        places = starts[..., None] + lax.iota(jnp.int64, window[dim])  # batch, channels, out, window
        shape = [1] * (2 * rank)
        shape[dim], shape[rank + dim] = size[dim], window[dim]
        places = places.reshape(*places.shape[:2], *shape)
        flat = places if flat is None else flat * spatial[dim] + places
    lead, outs = batched.shape[:2], tuple(size)
    index = jnp.broadcast_to(flat, (*lead, *outs, *window)).reshape(*lead, math.prod(outs), math.prod(window))
    plane = batched.reshape(*lead, math.prod(spatial))
    seen = jnp.take_along_axis(plane[:, :, None, :], index, axis=-1)
    best = lax.argmax(seen, 3, jnp.int64)[..., None]
    values = jnp.take_along_axis(seen, best, axis=-1).reshape(*lead, *outs)
    where = jnp.take_along_axis(index, best, axis=-1).reshape(*lead, *outs)
    return (values, where) if x.ndim == rank + 2 else (values[0], where[0])


@lowers("fractional_max_pool2d")
def _fractional_max_pool2d(x: Any, window: list[int], size: list[int], samples: Any) -> Any:
    return _fractional_max_pool(x, list(window), list(size), samples)


@lowers("fractional_max_pool3d")
def _fractional_max_pool3d(x: Any, window: list[int], size: list[int], samples: Any) -> Any:
    return _fractional_max_pool(x, list(window), list(size), samples)


# ---- Averages ----


def _avg_pool(
    x: Any, out: Any, rank: int, window: Any, stride: Any = (), padding: Any = 0, count_include_pad: bool = True, divisor: int | None = None
) -> Any:
    window = _spread(window, rank)
    stride = _spread(stride, rank) if stride else window
    padding = _spread(padding, rank)
    total = sum(_windows(x, out, window, stride, padding, [1] * rank, 0))
    if divisor is not None:
        return total / divisor
    # How many elements each window has: the padding counts or not; what ceil_mode hangs over the end never counts.
    number: Any = 1
    for dim, (size, step, pad, places) in enumerate(zip(x.shape[-rank:], stride, padding, window, strict=True)):
        first = lax.iota(jnp.int32, out[dim]) * step - pad
        low, high = (first, size + pad) if count_include_pad else (jnp.maximum(first, 0), size)
        along = jnp.minimum(first + places, high) - low
        number = number * along.reshape([-1 if place == dim else 1 for place in range(rank)])
    return total / number.astype(total.dtype)


def _avg(rank: int) -> tuple[Any, Any]:
    def forward(
        call: CallInfo,
        x: Any,
        window: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        out = tuple(call.out.shape[-rank:])
        work = convert(x, wide(x.dtype))
        return convert(_avg_pool(work, out, rank, window, stride, padding, count_include_pad, divisor_override), x.dtype)

    def backward(
        gradient: Any, x: Any, window: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool, divisor: int | None
    ) -> Any:
        out = gradient.shape[-rank:]
        work = convert(x, wide(x.dtype))

        def pooled(value: Any) -> Any:
            return _avg_pool(value, out, rank, window, stride, padding, count_include_pad, divisor)

        (result,) = jax.linear_transpose(pooled, work)(convert(gradient, work.dtype))
        return convert(result, x.dtype)

    return forward, backward


for _rank in (2, 3):
    _forward, _backward = _avg(_rank)
    lowers(f"avg_pool{_rank}d", call=True)(_forward)
    lowers(f"avg_pool{_rank}d_backward")(_backward)


@lowers("avg_pool1d", call=True)
def _avg_pool1d(
    call: CallInfo,
    x: Any,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    work = convert(x, wide(x.dtype))
    return convert(_avg_pool(work, tuple(call.out.shape[-1:]), 1, window, stride, padding, count_include_pad), x.dtype)


def _adaptive_matrix(size: int, out: int, dtype: Any) -> Any:
    """(out, size): the weights with which adaptive average pooling sees each element along one dimension."""
    index = lax.iota(jnp.int32, out)
    start, end = index * size // out, -(-((index + 1) * size) // out)
    place = lax.iota(jnp.int32, size)
    inside = (place >= start[:, None]) & (place < end[:, None])
    return inside.astype(dtype) / (end - start)[:, None].astype(dtype)


def _adaptive_avg(x: Any, out: Any) -> Any:
    rank = len(out)
    for dim, size in enumerate(out):
        axis = x.ndim - rank + dim
        matrix = _adaptive_matrix(x.shape[axis], size, x.dtype)
        x = jnp.moveaxis(jnp.tensordot(x, matrix, axes=((axis,), (1,))), -1, axis)
    return x


@lowers("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", call=True)
def _adaptive_avg_pool(call: CallInfo, x: Any, size: Any) -> Any:
    rank = len(size)
    return convert(_adaptive_avg(convert(x, wide(x.dtype)), tuple(call.out.shape[-rank:])), x.dtype)


@lowers("_adaptive_avg_pool2d_backward")
def _adaptive_avg_pool2d_backward(gradient: Any, x: Any) -> Any:
    return _adaptive_backward(gradient, x, 2)


@lowers("_adaptive_avg_pool3d_backward")
def _adaptive_avg_pool3d_backward(gradient: Any, x: Any) -> Any:
    return _adaptive_backward(gradient, x, 3)


def _adaptive_backward(gradient: Any, x: Any, rank: int) -> Any:
    work = convert(x, wide(x.dtype))
    (result,) = jax.linear_transpose(lambda value: _adaptive_avg(value, gradient.shape[-rank:]), work)(convert(gradient, work.dtype))
    return convert(result, x.dtype)


def _adaptive_max(x: Any, out: Any) -> tuple[Any, Any]:
    """Windows of unequal size: a gather of the longest, with what lies outside masked."""
    rank = len(out)
    spatial = x.shape[-rank:]
    flat: Any = None
    inside: Any = True
    longest = []
    for dim, (size, places) in enumerate(zip(spatial, out, strict=True)):
        index = lax.iota(jnp.int64, places)
        start, end = index * size // places, -(-((index + 1) * size) // places)
        most = max(-(-((i + 1) * size) // places) - i * size // places for i in range(places)) if places else 1
        longest.append(most)
        place = start[:, None] + lax.iota(jnp.int64, most)
        shape = [1] * (2 * rank)
        shape[dim], shape[rank + dim] = places, most
        inside = inside & (place < end[:, None]).reshape(shape)
        place = jnp.minimum(place, size - 1).reshape(shape)
        flat = place if flat is None else flat * size + place
    window = (*out, *longest)
    index = jnp.broadcast_to(flat, window).reshape(math.prod(out), -1)
    inside = jnp.broadcast_to(inside, window).reshape(index.shape)
    lead = x.shape[: x.ndim - rank]
    seen = jnp.take(x.reshape(*lead, -1), index, axis=-1)
    seen = jnp.where(inside, seen, jnp.asarray(_lowest(x), x.dtype))
    best = lax.argmax(seen, seen.ndim - 1, jnp.int64)[..., None]
    where = jnp.take_along_axis(jnp.broadcast_to(index, seen.shape), best, axis=-1)
    return jnp.take_along_axis(seen, best, axis=-1).reshape(*lead, *out), where.reshape(*lead, *out)


@lowers("adaptive_max_pool2d", "adaptive_max_pool3d", call=True)
def _adaptive_max_pool(call: CallInfo, x: Any, size: Any) -> Any:
    return _adaptive_max(x, tuple(call.out[0].shape[-len(size) :]))


@lowers("max_unpool2d", "max_unpool3d", call=True)
def _max_unpool(call: CallInfo, x: Any, indices: Any, size: Any, *_: Any) -> Any:
    rank = len(size)
    shape = tuple(call.out.shape)
    lead, plane = math.prod(shape[:-rank]), math.prod(shape[-rank:])
    rows = lax.broadcasted_iota(jnp.int32, (lead, math.prod(x.shape[-rank:])), 0)
    return jnp.zeros((lead, plane), x.dtype).at[rows, indices.reshape(lead, -1)].set(x.reshape(lead, -1)).reshape(shape)
