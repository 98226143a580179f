"""Reading and writing a strided tensor in a flat storage.

Note [Geometry]
Where the strides nest (slices, transposes, selections, steps), the storage is reshaped to one dimension a stride and the tensor is a box in
it: a slice to read, a dynamic_update_slice to write. Anything else (``as_strided`` windows that overlap) is a gather or a scatter on
computed positions. A dense tensor is a reshape and a transpose, a contiguous one nothing at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Geometry:
    """Sizes and strides (elements), offset from the storage's start (elements)."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def span(self) -> int:
        """Elements from the storage's start to the end of the last element."""
        if self.numel == 0:
            return 0
        return self.offset + 1 + sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))

    @property
    def contiguous(self) -> bool:
        return self.offset == 0 and _nests(self.sizes, self.strides)

    def memory_order(self) -> list[int] | None:
        """The order of dimensions in which a tensor that fills its storage is contiguous; None when it does not."""
        order = sorted(range(len(self.sizes)), key=lambda dim: (-self.strides[dim], -self.sizes[dim], dim))
        dense = _nests(tuple(self.sizes[dim] for dim in order), tuple(self.strides[dim] for dim in order))
        return order if self.offset == 0 and dense else None


def _nests(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Row-major without gaps; strides of dimensions of size 1 do not matter."""
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def contiguous(sizes: tuple[int, ...]) -> Geometry:
    """The row-major geometry."""
    strides = [1] * len(sizes)
    for dim in range(len(sizes) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(1, sizes[dim + 1])
    return Geometry(tuple(sizes), tuple(strides))


@dataclass
class _Box:
    """A tensor as a box in a reshaped storage, see Note [Geometry]."""

    dims: list[int]  # dimensions of the tensor, outermost first; those of size 1 and (to read) stride 0 are left out
    shape: list[int]  # of the reshaped storage; the last one is the step that no dimension covers
    starts: list[int]
    sizes: list[int]
    first: int  # element of the storage at which the reshaped part begins


def _box(geometry: Geometry) -> _Box | None:
    dims = [dim for dim, size in enumerate(geometry.sizes) if size != 1 and geometry.strides[dim] != 0]
    dims.sort(key=lambda dim: -geometry.strides[dim])
    if any(geometry.strides[dim] < 0 for dim in dims):
        return None
    strides = [geometry.strides[dim] for dim in dims]
    sizes = [geometry.sizes[dim] for dim in dims]
    if not dims:
        return _Box([], [1], [0], [1], geometry.offset)
    rest = geometry.offset % strides[0]
    first = geometry.offset - rest
    shape, starts = [sizes[0]], [0]
    for outer, inner, size in zip(strides, strides[1:], sizes[1:], strict=False):
        start, rest = divmod(rest, inner)
        if outer % inner or start + size > outer // inner:
            return None
        shape.append(outer // inner)
        starts.append(start)
    return _Box(dims, [*shape, strides[-1]], [*starts, rest], [*sizes, 1], first)


def _positions(geometry: Geometry) -> Any:
    """Position in the storage of each element, in the tensor's shape."""
    index_type = jnp.int32 if geometry.span < 2**31 else jnp.int64
    positions = jnp.full(geometry.sizes, geometry.offset, index_type)
    for dim, stride in enumerate(geometry.strides):
        positions = positions + lax.broadcasted_iota(index_type, geometry.sizes, dim) * jnp.asarray(stride, index_type)
    return positions


def read(flat: Any, geometry: Geometry) -> Any:
    """The tensor of ``geometry`` in the one-dimensional ``flat``, in its logical shape."""
    if geometry.numel == 0:
        return jnp.zeros(geometry.sizes, flat.dtype)
    box = _box(geometry)
    if box is None:
        return flat.at[_positions(geometry)].get(mode="promise_in_bounds")
    value = _part(flat, box.first, math.prod(box.shape)).reshape(box.shape)
    if box.sizes != box.shape:
        value = lax.slice(value, box.starts, [start + size for start, size in zip(box.starts, box.sizes, strict=True)])
    value = value.reshape(box.sizes[: len(box.dims)])
    order = sorted(range(len(box.dims)), key=lambda place: box.dims[place])
    if order != list(range(len(order))):
        value = lax.transpose(value, order)
    return lax.broadcast_in_dim(value, geometry.sizes, sorted(box.dims))


def write(flat: Any, geometry: Geometry, value: Any) -> Any:
    """``flat`` with ``value`` (logical shape) in the place of the tensor of ``geometry``. Of elements that share a place, one wins."""
    if geometry.numel == 0:
        return flat
    box = _box(geometry)
    overlaps = any(stride == 0 and size != 1 for size, stride in zip(geometry.sizes, geometry.strides, strict=True))
    if box is None or overlaps:
        return flat.at[_positions(geometry).reshape(-1)].set(value.reshape(-1), mode="promise_in_bounds")
    size = math.prod(box.shape)
    whole = _part(flat, box.first, size).reshape(box.shape)
    in_order = sorted(box.dims)
    squeezed = value.reshape([geometry.sizes[dim] for dim in in_order])
    permuted = lax.transpose(squeezed, [in_order.index(dim) for dim in box.dims]).reshape(box.sizes)
    whole = lax.dynamic_update_slice(whole, permuted, [np.int32(start) for start in box.starts]).reshape(-1)
    if box.first == 0 and size == flat.shape[0]:
        return whole
    end = min(box.first + size, flat.shape[0])  # the last row of the box may hang over the end
    parts = [flat[: box.first], whole[: end - box.first], flat[end:]]
    return lax.concatenate([part for part in parts if part.shape[0]], 0)


def _part(flat: Any, first: int, size: int) -> Any:
    """``flat[first : first + size]``, padded with zeros where it ends too early."""
    if first == 0 and size == flat.shape[0]:
        return flat
    missing = first + size - flat.shape[0]
    part = lax.slice(flat, [first], [min(first + size, flat.shape[0])])
    return lax.pad(part, jnp.zeros((), flat.dtype), [(0, missing, 0)]) if missing > 0 else part


def flatten(value: Any, geometry: Geometry) -> Any:
    """The storage that a tensor of ``geometry`` fills without gaps, from its logical ``value``."""
    order = geometry.memory_order()
    assert order is not None, geometry
    return lax.transpose(value, order).reshape(-1) if order != list(range(len(order))) else value.reshape(-1)
