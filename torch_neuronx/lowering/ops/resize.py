"""Resampling of images. PyTorch decomposes the forward direction; the gradients are products with the transposed weights."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import convert, wide
from torch_neuronx.lowering.table import lowers


def _source(out: int, size: int, align_corners: bool, scale: float | None, cubic: bool, dtype: Any) -> Any:
    """Where each of ``out`` places lies in the input of ``size``."""
    index = lax.iota(dtype, out)
    if align_corners:
        return index * ((size - 1) / (out - 1) if out > 1 else 0.0)
    step = 1 / scale if scale else size / out
    place = (index + 0.5) * step - 0.5
    return place if cubic else jnp.maximum(place, 0)


def _linear_weights(out: int, size: int, align_corners: bool, scale: float | None, dtype: Any) -> Any:
    """(out, size)"""
    place = _source(out, size, align_corners, scale, False, dtype)
    low = jnp.minimum(jnp.floor(place), size - 1)
    share = jnp.clip(place - low, 0, 1)
    high = jnp.minimum(low + 1, size - 1)
    column = lax.iota(dtype, size)
    return (column == low[:, None]) * (1 - share[:, None]) + (column == high[:, None]) * share[:, None]


def _cubic_weights(out: int, size: int, align_corners: bool, scale: float | None, dtype: Any) -> Any:
    place = _source(out, size, align_corners, scale, True, dtype)
    low = jnp.floor(place)
    t = (place - low)[:, None]
    a = -0.75

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    column = lax.iota(dtype, size)
    total: Any = 0
    for shift, weight in ((-1, far(t + 1)), (0, near(t)), (1, near(1 - t)), (2, far(2 - t))):
        total = total + (column == jnp.clip(low + shift, 0, size - 1)[:, None]) * weight
    return total


def _nearest_weights(out: int, size: int, exact: bool, scale: float | None, dtype: Any) -> Any:
    index = lax.iota(dtype, out)
    step = 1 / scale if scale else size / out
    place = jnp.minimum(jnp.floor((index + (0.5 if exact else 0.0)) * step), size - 1)
    return (lax.iota(dtype, size) == place[:, None]).astype(dtype)


def _spread_back(gradient: Any, matrices: list[Any]) -> Any:
    """The gradient of the input: each spatial dimension times its weights."""
    result = convert(gradient, wide(gradient.dtype))
    for index, matrix in enumerate(matrices):
        axis = result.ndim - len(matrices) + index
        result = jnp.moveaxis(jnp.tensordot(result, matrix.astype(result.dtype), axes=((axis,), (0,))), -1, axis)
    return convert(result, gradient.dtype)


def _backward(rank: int, weights: Any, has_corners: bool, extra: Any = None) -> Any:
    def lowered(gradient: Any, output_size: Any, input_size: Any, *rest: Any) -> Any:
        corners, scales = (rest[0], rest[1:]) if has_corners else (extra, rest)
        work = wide(gradient.dtype)
        given = [*scales, *[None] * (rank - len(scales))]
        matrices = [weights(gradient.shape[2 + dim], input_size[2 + dim], corners, given[dim], work) for dim in range(rank)]
        return _spread_back(gradient, matrices)

    return lowered


for _rank, _name in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    lowers(f"upsample_{_name}_backward")(_backward(_rank, _linear_weights, has_corners=True))
lowers("upsample_bicubic2d_backward")(_backward(2, _cubic_weights, has_corners=True))
for _rank in (1, 2, 3):
    lowers(f"upsample_nearest{_rank}d_backward")(_backward(_rank, _nearest_weights, has_corners=False, extra=False))
    lowers(f"_upsample_nearest_exact{_rank}d_backward")(_backward(_rank, _nearest_weights, has_corners=False, extra=True))
