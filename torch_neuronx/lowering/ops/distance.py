"""Distances between rows, and their gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering.table import lowers


def _norm(difference: Any, p: float) -> Any:
    """p-norm over the last dimension, whose gradient at 0 is 0."""
    size = jnp.abs(difference)
    if p == 0:
        return jnp.sum(size != 0, -1).astype(size.dtype)
    if p == 1:
        return jnp.sum(size, -1)
    if p == float("inf"):
        return jnp.max(size, -1) if size.shape[-1] else jnp.zeros(size.shape[:-1], size.dtype)
    zero = jnp.all(difference == 0, -1, keepdims=True)
    safe = jnp.where(zero, 1, size)
    total = jnp.sum(jnp.where(safe == 0, 0, jnp.power(jnp.where(safe == 0, 1, safe), p)), -1)
    return jnp.where(zero[..., 0], 0, jnp.power(total, 1 / p))


def _cdist(a: Any, b: Any, p: float) -> Any:
    return _norm(a[..., :, None, :] - b[..., None, :, :], p)


@lowers("_cdist_forward")
def _cdist_forward(a: Any, b: Any, p: float, compute_mode: int | None = None) -> Any:
    return _cdist(a, b, p)


@lowers("_cdist_backward")
def _cdist_backward(gradient: Any, a: Any, b: Any, p: float, _distances: Any) -> Any:
    if p == 0:
        return jnp.zeros_like(a)
    return jax.vjp(lambda x: _cdist(x, b, p), a)[1](gradient)[0]


def _pairs(count: int) -> Any:
    return np.triu_indices(count, 1)


def _pdist(x: Any, p: float) -> Any:
    first, second = _pairs(x.shape[0])
    return _norm(x[first] - x[second], p)


@lowers("_pdist_forward")
def _pdist_forward(x: Any, p: float = 2) -> Any:
    return _pdist(x, p)


@lowers("_pdist_backward")
def _pdist_backward(gradient: Any, x: Any, p: float, _distances: Any) -> Any:
    if p == 0:
        return jnp.zeros_like(x)
    return jax.vjp(lambda value: _pdist(value, p), x)[1](gradient)[0]
