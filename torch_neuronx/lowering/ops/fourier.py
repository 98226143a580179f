"""Fourier transforms along any dimensions."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from torch_neuronx.lowering.table import CallInfo, lowers


def _scaled(x: Any, sizes: list[int], normalization: int) -> Any:
    """PyTorch's codes: 0 none, 1 by the square root of the signal's size, 2 by the size."""
    size = math.prod(sizes)
    factor = {0: 1.0, 1: 1 / math.sqrt(size), 2: 1 / size}[normalization]
    return x if factor == 1.0 else x * jnp.asarray(factor, x.real.dtype)


def _dims(dim: list[int], rank: int) -> list[int]:
    return [d % rank for d in dim]


@lowers("_fft_c2c")
def _c2c(x: Any, dim: list[int], normalization: int, forward: bool) -> Any:
    if not dim:
        return x
    dims = _dims(dim, x.ndim)
    result = x
    for axis in dims:
        result = (jnp.fft.fft if forward else jnp.fft.ifft)(result, axis=axis, norm="backward" if forward else "forward")
    return _scaled(result, [x.shape[axis] for axis in dims], normalization).astype(x.dtype)


@lowers("_fft_r2c", call=True)
def _r2c(call: CallInfo, x: Any, dim: list[int], normalization: int, onesided: bool) -> Any:
    dims = _dims(dim, x.ndim)
    last, others = dims[-1], dims[:-1]
    result = jnp.fft.rfft(x, axis=last) if onesided else jnp.fft.fft(x, axis=last)
    for axis in others:
        result = jnp.fft.fft(result, axis=axis)
    complex_type = jnp.complex128 if x.dtype == jnp.float64 else jnp.complex64
    return _scaled(result, [x.shape[axis] for axis in dims], normalization).astype(complex_type)


@lowers("_fft_c2r")
def _c2r(x: Any, dim: list[int], normalization: int, last_dim_size: int) -> Any:
    dims = _dims(dim, x.ndim)
    last, others = dims[-1], dims[:-1]
    result = x
    for axis in others:
        result = jnp.fft.ifft(result, axis=axis, norm="forward")
    result = jnp.fft.irfft(result, last_dim_size, axis=last, norm="forward")
    sizes = [x.shape[axis] for axis in others] + [last_dim_size]
    return _scaled(result, sizes, normalization).astype(jnp.float64 if x.dtype == jnp.complex128 else jnp.float32)
