"""Fourier transforms as matrix products: HLO's fft is complex, and no chip has it.

A length that has factors is split by Cooley and Tukey's step, n = a * b: transforms of length a, a multiplication, transforms of length b,
down to _DIRECT, where the transform is a product with its matrix. A prime beyond that is a convolution whose length is a power of two
(Bluestein). Tables are computed in float64 and rounded once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.pairs.pair import Pair, mul

_DIRECT = 64  # longest transform that is one matrix product


def transform(a: Pair, sign: int) -> Pair:
    """Along the last dimension, without a factor; ``sign`` -1: forward."""
    n = a.shape[-1]
    if n <= 1:
        return a
    if n <= _DIRECT:
        return _matrix_product(a, _table(n, sign, a.re.dtype))
    factor = _factor(n)
    if factor == 1:
        return _bluestein(a, sign)
    rest = n // factor
    # x[i * rest + j], i < factor: first along i, then along j.
    grid = Pair(*(part.reshape(*a.shape[:-1], factor, rest).swapaxes(-1, -2) for part in a))
    inner = transform(grid, sign)  # [..., j, p]
    turned = mul(inner, _twiddles(rest, factor, sign, a.re.dtype))
    outer = transform(Pair(*(part.swapaxes(-1, -2) for part in turned)), sign)  # [..., p, q]
    # Element p + factor * q of the result.
    return Pair(*(part.swapaxes(-1, -2).reshape(a.shape) for part in outer))


def _factor(n: int) -> int:
    """The largest factor up to _DIRECT; 1: none."""
    return next(factor for factor in range(_DIRECT, 0, -1) if n % factor == 0)


def _matrix_product(a: Pair, table: Pair) -> Pair:
    def times(x: Any, y: Any) -> Any:
        return lax.dot_general(x, y, (((x.ndim - 1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)

    return Pair(times(a.re, table.re) - times(a.im, table.im), times(a.re, table.im) + times(a.im, table.re))


def _constant(angles: np.ndarray, dtype: Any) -> Pair:
    return Pair(np.cos(angles).astype(dtype), np.sin(angles).astype(dtype))


@functools.lru_cache(maxsize=64)
def _table(n: int, sign: int, dtype: Any) -> Pair:
    index = np.arange(n)
    return _constant(sign * 2 * math.pi * (np.outer(index, index) % n) / n, dtype)


@functools.lru_cache(maxsize=64)
def _twiddles(rows: int, columns: int, sign: int, dtype: Any) -> Pair:
    n = rows * columns
    return _constant(sign * 2 * math.pi * (np.outer(np.arange(rows), np.arange(columns)) % n) / n, dtype)


def _bluestein(a: Pair, sign: int) -> Pair:
    """i * j = (i**2 + j**2 - (j - i)**2) / 2 makes a convolution of the transform."""
    n = a.shape[-1]
    size = 1 << (2 * n - 2).bit_length()
    index = np.arange(n)
    angles = sign * math.pi * (index * index % (2 * n)) / n
    chirp = _constant(angles, a.re.dtype)
    kernel = np.zeros(size, complex)
    kernel[:n] = np.exp(-1j * angles)
    kernel[size - n + 1 :] = kernel[1:n][::-1]
    spectrum = np.fft.fft(kernel) / size
    known = Pair(spectrum.real.astype(a.re.dtype), spectrum.imag.astype(a.re.dtype))
    turned = mul(a, chirp)
    padding = [(0, 0)] * (len(a.shape) - 1) + [(0, size - n)]
    there = transform(Pair(*(jnp.pad(part, padding) for part in turned)), -1)
    back = transform(mul(there, known), 1)
    return mul(Pair(*(part[..., :n] for part in back)), chirp)


def fft(value: Any, kind: str, lengths: tuple[int, ...]) -> Any:
    """XLA's fft along the last ``len(lengths)`` dimensions; ``kind``: FFT, IFFT, RFFT, IRFFT."""
    rank = len(lengths)
    if kind == "RFFT":
        found = Pair(value, jnp.zeros_like(value))
        found = transform(found, -1)
        found = Pair(*(part[..., : lengths[-1] // 2 + 1] for part in found))
        return _along(found, range(2, rank + 1), -1)
    if kind == "IRFFT":
        found = _scaled(_along(value, range(2, rank + 1), 1), math.prod(lengths))
        return transform(_whole(found, lengths[-1]), 1).re
    found = _along(value, range(1, rank + 1), -1 if kind == "FFT" else 1)
    return found if kind == "FFT" else _scaled(found, math.prod(lengths))


def _along(a: Pair, from_the_end: Any, sign: int) -> Pair:
    for dim in from_the_end:
        a = Pair(*(jnp.moveaxis(part, -dim, -1) for part in a))
        a = Pair(*(jnp.moveaxis(part, -1, -dim) for part in transform(a, sign)))
    return a


def _scaled(a: Pair, size: int) -> Pair:
    return Pair(a.re * (1 / size), a.im * (1 / size))


def _whole(half: Pair, n: int) -> Pair:
    """The spectrum of a real signal of length ``n`` from its first half. The parts that must be real are taken to be."""
    kept = n // 2 + 1
    re, im = (part[..., :kept] for part in half)
    mirrored = slice(1, (n + 1) // 2)
    first = im[..., :1] * 0
    im = jnp.concatenate([first, im[..., 1:]], -1)
    if n % 2 == 0 and kept > 1:
        im = jnp.concatenate([im[..., :-1], first], -1)
    return Pair(
        jnp.concatenate([re, jnp.flip(re[..., mirrored], -1)], -1),
        jnp.concatenate([im, -jnp.flip(im[..., mirrored], -1)], -1),
    )
