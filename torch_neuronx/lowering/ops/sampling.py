"""Sampling at computed places: grid_sampler in two and three dimensions, edge padding, antialiased resizing; gradients by transposition."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import convert, wide
from torch_neuronx.lowering.table import lowers

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _placed(coordinate: Any, size: int, align: bool) -> Any:
    """From [-1, 1] to pixels."""
    return (coordinate + 1) / 2 * (size - 1) if align else ((coordinate + 1) * size - 1) / 2


def _reflected(place: Any, low: float, high: float) -> Any:
    """Folded back at both borders."""
    span = high - low
    if span == 0:
        return jnp.zeros_like(place)
    place = jnp.abs(place - low)
    rest = jnp.mod(place, span)
    return jnp.where(jnp.mod(jnp.floor(place / span), 2) == 0, rest + low, span - rest + low)


def _padded(place: Any, size: int, padding: int, align: bool) -> Any:
    if padding == _REFLECTION:
        place = _reflected(place, 0, size - 1) if align else _reflected(place, -0.5, size - 0.5)
    return jnp.clip(place, 0, size - 1) if padding in (_BORDER, _REFLECTION) else place


def _fetch(x: Any, places: list[Any]) -> Any:
    """Pixels at whole places (batch, *out); zero outside. Returns (batch, channels, *out)."""
    sizes = x.shape[2:]
    inside: Any = True
    flat: Any = 0
    for place, size in zip(places, sizes, strict=True):
        inside = inside & (place >= 0) & (place < size)
        flat = flat * size + jnp.clip(place, 0, size - 1).astype(jnp.int32)
    plane = x.reshape(*x.shape[:2], -1)
    index = flat.reshape(flat.shape[0], 1, -1)
    seen = jnp.take_along_axis(plane, jnp.broadcast_to(index, (*plane.shape[:2], index.shape[-1])), axis=-1)
    return jnp.where(inside.reshape(inside.shape[0], 1, -1), seen, 0).reshape(*x.shape[:2], *flat.shape[1:])


def _cubic(t: Any) -> list[Any]:
    a = -0.75

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _grid_sample(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    """``grid`` names the last dimension first."""
    rank = x.ndim - 2
    sizes = x.shape[2:]
    raw = [_placed(grid[..., rank - 1 - dim], sizes[dim], align) for dim in range(rank)]
    if mode == _BICUBIC:
        lows = [jnp.floor(place) for place in raw]
        weights = [_cubic(place - low) for place, low in zip(raw, lows, strict=True)]
        total: Any = 0
        for shifts in itertools.product(range(4), repeat=rank):
            places = [_padded(low + shift - 1, size, padding, align) for low, shift, size in zip(lows, shifts, sizes, strict=True)]
            weight: Any = 1
            for dim, shift in enumerate(shifts):
                weight = weight * weights[dim][shift]
            total = total + _fetch(x, places) * weight[:, None]
        return total
    places = [_padded(place, size, padding, align) for place, size in zip(raw, sizes, strict=True)]
    if mode == _NEAREST:
        return _fetch(x, [lax.round(place, lax.RoundingMethod.TO_NEAREST_EVEN) for place in places])
    lows = [lax.stop_gradient(jnp.floor(place)) for place in places]
    total = 0
    for corner in itertools.product((0, 1), repeat=rank):
        weight = 1
        for place, low, side in zip(places, lows, corner, strict=True):
            weight = weight * ((place - low) if side else (1 - (place - low)))
        total = total + _fetch(x, [low + side for low, side in zip(lows, corner, strict=True)]) * weight[:, None]
    return total


@lowers("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    work = wide(x.dtype)
    return convert(_grid_sample(convert(x, work), convert(grid, work), mode, padding, align_corners), x.dtype)


@lowers("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(gradient: Any, x: Any, grid: Any, mode: int, padding: int, align_corners: bool, mask: list[bool]) -> Any:
    work = wide(x.dtype)
    wide_x, wide_grid = convert(x, work), convert(grid, work)
    back = jax.vjp(lambda a, b: _grid_sample(a, b, mode, padding, align_corners), wide_x, wide_grid)[1]
    dx, dgrid = back(convert(gradient, work))
    return (convert(dx, x.dtype) if mask[0] else None), convert(dgrid, grid.dtype)


# ---- Edge padding ----


def _edge(x: Any, pad: list[int]) -> Any:
    """The last elements repeat; negative amounts cut."""
    rank = len(pad) // 2
    for index in range(rank):
        axis = x.ndim - 1 - index
        before, after = pad[2 * index], pad[2 * index + 1]
        place = jnp.clip(lax.iota(jnp.int32, x.shape[axis] + before + after) - before, 0, x.shape[axis] - 1)
        x = jnp.take(x, place, axis=axis, mode="clip")
    return x


@lowers("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication_pad(x: Any, padding: list[int]) -> Any:
    return _edge(x, list(padding))


@lowers("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def _replication_pad_backward(gradient: Any, x: Any, padding: list[int]) -> Any:
    return jax.linear_transpose(lambda value: _edge(value, list(padding)), x)(gradient)[0]


# ---- Antialiased resizing ----


def _filter(x: Any, cubic: bool) -> Any:
    x = jnp.abs(x)
    if not cubic:
        return jnp.maximum(1 - x, 0)
    a = -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return jnp.where(x < 1, near, jnp.where(x < 2, far, 0))


def _aa_weights(out: int, size: int, align: bool, scale: float | None, cubic: bool, dtype: Any) -> Any:
    """(out, size)"""
    step = ((size - 1) / (out - 1) if out > 1 else 0.0) if align else (1 / scale if scale else size / out)
    support = (2.0 if cubic else 1.0) * max(step, 1.0)
    centre = step * (lax.iota(dtype, out) + 0.5)
    low = jnp.maximum(jnp.floor(centre - support + 0.5), 0)
    high = jnp.minimum(jnp.floor(centre + support + 0.5), size)
    place = lax.iota(dtype, size)
    weight = _filter((place - centre[:, None] + 0.5) / max(step, 1.0), cubic)
    weight = jnp.where((place >= low[:, None]) & (place < high[:, None]), weight, 0)
    return weight / jnp.sum(weight, -1, keepdims=True)


def _matrices(out: Any, size: Any, align: bool, scales: Any, cubic: bool, dtype: Any) -> list[Any]:
    return [_aa_weights(o, s, align, scale, cubic, dtype) for o, s, scale in zip(out, size, scales, strict=True)]


def _antialiased(cubic: bool) -> tuple[Any, Any]:
    def forward(x: Any, size: Any, align_corners: bool, scale_h: float | None = None, scale_w: float | None = None) -> Any:
        work = wide(x.dtype)
        rows, columns = _matrices(size, x.shape[2:], align_corners, (scale_h, scale_w), cubic, work)
        return convert(jnp.einsum("nchw,ih,jw->ncij", convert(x, work), rows, columns), x.dtype)

    def backward(
        g: Any, size: Any, input_size: Any, align_corners: bool, scale_h: float | None = None, scale_w: float | None = None
    ) -> Any:
        work = wide(g.dtype)
        rows, columns = _matrices(size, input_size[2:], align_corners, (scale_h, scale_w), cubic, work)
        return convert(jnp.einsum("ncij,ih,jw->nchw", convert(g, work), rows, columns), g.dtype)

    return forward, backward


for _name, _cubic_kind in (("bilinear", False), ("bicubic", True)):
    _forward, _backward = _antialiased(_cubic_kind)
    lowers(f"_upsample_{_name}2d_aa")(_forward)
    lowers(f"_upsample_{_name}2d_aa_backward")(_backward)
