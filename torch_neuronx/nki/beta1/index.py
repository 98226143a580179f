"""Index expressions of beta-1 kernels: ``nl.arange``, ``nl.mgrid``, and masks made by comparing them.

An :class:`Index` is affine over the axes of an index space: ``const + sum(coefficient * position)``. So an access with them is a
pattern, and a mask is a rectangle. What is not affine (``i // 2``) becomes a NumPy array and must turn out to be a pattern when used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.trace import where


class Index:
    """``const + sum(coefficients[k] * i[k])`` over positions ``i`` in ``shape``."""

    __array_priority__ = 100.0

    def __init__(self, shape: Sequence[int], coefficients: Sequence[int], const: int = 0) -> None:
        self.shape, self.coefficients, self.const = tuple(shape), tuple(coefficients), const

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, key: Any) -> Index:
        keys = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in [k for k in keys if not isinstance(k, slice)]:
            at = next(k for k, v in enumerate(keys) if v is Ellipsis)
            fill = self.ndim - sum(1 for k in keys if k is not None) + 1
            keys[at : at + 1] = [slice(None)] * fill
        shape: list[int] = []
        coefficients: list[int] = []
        const, dim = self.const, 0
        for k in [*keys, *[slice(None)] * (self.ndim - sum(1 for k in keys if k is not None))]:
            if k is None:
                shape.append(1)
                coefficients.append(0)
                continue
            start, stop, step = k.indices(self.shape[dim])
            const += start * self.coefficients[dim]
            shape.append(len(range(start, stop, step)))
            coefficients.append(self.coefficients[dim] * step)
            dim += 1
        return Index(shape, coefficients, const)

    def aligned(self, rank: int) -> tuple[int, ...]:
        return (0,) * (rank - self.ndim) + self.coefficients

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        values = np.full(self.shape, self.const)
        for dim, coefficient in enumerate(self.coefficients):
            positions = np.arange(self.shape[dim]).reshape((-1,) + (1,) * (self.ndim - dim - 1))
            values = values + coefficient * positions
        return values if dtype is None else values.astype(dtype)

    def _combine(self, other: Any, sign: int) -> Any:
        if isinstance(other, Index):
            shape = np.broadcast_shapes(self.shape, other.shape)
            rank = len(shape)
            pairs = zip(self.aligned(rank), other.aligned(rank), strict=True)
            return Index(shape, [a + sign * b for a, b in pairs], self.const + sign * other.const)
        if isinstance(other, np.ndarray) and other.ndim:
            return np.asarray(self) + sign * other
        return Index(self.shape, self.coefficients, self.const + sign * _integer(other))

    def __add__(self, other: Any) -> Any:
        return self._combine(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combine(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (self * -1) + other

    def __neg__(self) -> Any:
        return self * -1

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, (Index, np.ndarray)):
            return np.asarray(self) * np.asarray(other)
        factor = _integer(other)
        return Index(self.shape, [factor * c for c in self.coefficients], factor * self.const)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return np.asarray(self) // other

    def __mod__(self, other: Any) -> Any:
        return np.asarray(self) % other

    def __lt__(self, other: Any) -> Mask:
        return Mask([self - other + 1])

    def __le__(self, other: Any) -> Mask:
        return Mask([self - other])

    def __gt__(self, other: Any) -> Mask:
        return Mask([other - self + 1])

    def __ge__(self, other: Any) -> Mask:
        return Mask([other - self])

    def __eq__(self, other: object) -> Any:
        return Mask([self - other, (self - other) * -1])

    __hash__ = None  # type: ignore[assignment]


def _integer(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise TypeError(f"{where()}an index expression needs integers, got {value!r}")
    return int(value)


class Mask:
    """Affine conditions ``expression <= 0``, all of which hold."""

    def __init__(self, conditions: Sequence[Any]) -> None:
        self.conditions = [_affine(c) for c in conditions]

    def __and__(self, other: Any) -> Mask:
        if isinstance(other, (bool, np.bool_)):
            return self if other else Mask([Index((1,), (0,), 1)])
        return Mask([*self.conditions, *other.conditions])

    __rand__ = __and__

    def bounds(self, shape: Sequence[int]) -> list[tuple[int, int]]:
        """The rectangle ``[(start, stop), ...]`` of ``shape`` in which the conditions hold; a stop of 0 when they hold nowhere.

        Raises:
            NkiValidationError: the region is no rectangle.
        """
        limits = [[0, n] for n in shape]
        for condition in self.conditions:
            rank = max(condition.ndim, len(shape))
            coefficients = condition.aligned(rank)[rank - len(shape) :]
            active = [d for d, c in enumerate(coefficients) if c and shape[d] > 1]
            const = condition.const
            if not active:
                if const > 0:
                    return [(0, 0)] * len(shape)
                continue
            worst = const + sum(max(0, c * (shape[d] - 1)) for d, c in enumerate(coefficients))
            if worst <= 0:
                continue  # holds everywhere
            if len(active) > 1:
                raise NkiValidationError(f"{where()}a mask over several dimensions in one comparison is no rectangle; use affine_select")
            d, c = active[0], coefficients[active[0]]
            if c > 0:
                limits[d][1] = min(limits[d][1], -const // c + 1)
            else:
                limits[d][0] = max(limits[d][0], -(-const // -c))
        return [(0, 0)] * len(shape) if any(a >= b for a, b in limits) else [(a, b) for a, b in limits]


def _affine(value: Any) -> Index:
    """An Index equal to the values of an array.

    Raises:
        NkiValidationError: there is none.
    """
    if isinstance(value, Index):
        return value
    array = np.asarray(value)
    origin = (0,) * array.ndim
    steps = [int(array[(*origin[:d], 1, *origin[d + 1 :])]) - int(array[origin]) if n > 1 else 0 for d, n in enumerate(array.shape)]
    found = Index(array.shape, steps, int(array[origin]))
    if not np.array_equal(np.asarray(found), array):
        raise NkiValidationError(
            f"{where()}an index expression is not affine in the positions of nl.arange and cannot be an access pattern"
        )
    return found


def arange(*args: int) -> Index:
    """``nl.arange(stop)``, ``nl.arange(start, stop[, step])``: one-dimensional; give it dimensions with ``[:, None]``."""
    values = range(*(int(a) for a in args))
    return Index((len(values),), (values.step,), values.start)


class _MGrid:
    """``nl.mgrid[0:128, 0:512]``: an Index per dimension, also as attributes p, x, y, z, w."""

    def __getitem__(self, key: Any) -> Grid:
        keys = key if isinstance(key, tuple) else (key,)
        ranges = [range(int(k.start or 0), int(k.stop), int(k.step or 1)) for k in keys]
        shape = tuple(len(r) for r in ranges)
        return Grid(Index(shape, [r.step * (k == d) for k in range(len(ranges))], r.start) for d, r in enumerate(ranges))


class Grid(tuple[Index, ...]):
    """What ``nl.mgrid`` gives."""

    def __getattr__(self, name: str) -> Index:
        names = ("p", "x", "y", "z", "w")
        if name in names and names.index(name) < len(self):
            return self[names.index(name)]
        raise AttributeError(name)


mgrid = _MGrid()
