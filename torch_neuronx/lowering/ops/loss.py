"""Losses that PyTorch does not decompose."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from torch_neuronx.lowering.promotion import convert, expand, wide
from torch_neuronx.lowering.table import lowers


def _reduced(loss: Any, reduction: int) -> Any:
    """0: none, 1: mean, 2: sum."""
    return loss if reduction == 0 else jnp.mean(loss) if reduction == 1 else jnp.sum(loss)


@lowers("binary_cross_entropy")
def _binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    work = convert(x, wide(x.dtype))
    loss = (convert(target, work.dtype) - 1) * jnp.maximum(jnp.log1p(-work), -100) - convert(target, work.dtype) * jnp.maximum(
        jnp.log(work), -100
    )
    if weight is not None:
        loss = loss * expand(convert(weight, work.dtype), loss.shape)
    return convert(_reduced(loss, reduction), x.dtype)


def _multi_margin(x: Any, target: Any, p: int, margin: float, weight: Any, reduction: int) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    wanted = target.reshape(-1)[:, None]
    gap = margin - jnp.take_along_axis(rows, wanted, axis=1) + rows
    terms = jnp.maximum(gap, 0)
    terms = terms * terms if p == 2 else terms
    if weight is not None:
        terms = terms * weight[wanted]
    terms = jnp.where(jnp.arange(rows.shape[1]) == wanted, 0, terms)
    loss = _reduced(jnp.sum(terms, 1) / rows.shape[1], reduction)
    return loss.reshape(()) if x.ndim == 1 else loss


@lowers("multi_margin_loss_backward")
def _multi_margin_backward(g: Any, x: Any, target: Any, p: Any, margin: Any, weight: Any = None, reduction: int = 1) -> Any:
    work = convert(jnp.atleast_1d(x), wide(x.dtype))
    loss, back = jax.vjp(lambda value: _multi_margin(value, target, p, margin, weight, reduction), work)
    return convert(back(jnp.broadcast_to(convert(g, loss.dtype), loss.shape))[0], x.dtype).reshape(x.shape)


def _multilabel_margin(x: Any, target: Any, reduction: int) -> Any:
    rows, labels = x.reshape(-1, x.shape[-1]), target.reshape(-1, x.shape[-1])
    valid = jnp.cumprod(labels >= 0, axis=1).astype(jnp.bool_)  # up to the first -1
    place = jnp.where(valid, labels, 0)
    size = rows.shape[1]
    is_target = jnp.any((place[:, :, None] == jnp.arange(size)) & valid[:, :, None], 1)
    gap = 1 - jnp.take_along_axis(rows, place, axis=1)[:, :, None] + rows[:, None, :]
    terms = jnp.where(valid[:, :, None] & ~is_target[:, None, :], jnp.maximum(gap, 0), 0)
    loss = _reduced(jnp.sum(terms, (1, 2)) / size, reduction)
    return loss.reshape(()) if x.ndim < 2 else loss


@lowers("multilabel_margin_loss_backward")
def _multilabel_margin_backward(g: Any, x: Any, target: Any, reduction: int, _is_target: Any) -> Any:
    work = convert(jnp.atleast_1d(x), wide(x.dtype))
    loss, back = jax.vjp(lambda value: _multilabel_margin(value, jnp.atleast_1d(target), reduction), work)
    return convert(back(jnp.broadcast_to(convert(g, loss.dtype), loss.shape))[0], x.dtype).reshape(x.shape)
