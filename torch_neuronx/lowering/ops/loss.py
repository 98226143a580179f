"""Losses that PyTorch does not decompose."""

from __future__ import annotations

from typing import Any

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
