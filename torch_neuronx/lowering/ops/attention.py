"""Scaled dot product attention: the flash kernels' interface over plain matrix products, which the compiler fuses as it likes."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import convert, wide
from torch_neuronx.lowering.table import lowers


def _scores(query: Any, key: Any, is_causal: bool, mask: Any, scale: float | None) -> Any:
    """(batch, heads, queries, keys) in the compute dtype, masked."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    work = wide(query.dtype)
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=work) * jnp.asarray(factor, work)
    masked = jnp.asarray(-math.inf, work)
    if is_causal:
        rows = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        scores = jnp.where(rows >= lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1), scores, masked)
    if mask is not None:
        scores = jnp.where(mask, scores, masked) if mask.dtype == jnp.bool_ else scores + convert(mask, work)
    return scores


def _forward(query: Any, key: Any, value: Any, is_causal: bool, mask: Any, scale: float | None) -> tuple[Any, Any]:
    """Output (batch, heads, queries, features), and the log of each row's sum (batch, heads, queries)."""
    scores = _scores(query, key, is_causal, mask, scale)
    largest = jnp.max(scores, -1, keepdims=True)
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    weights = jnp.exp(scores - shift)
    total = jnp.sum(weights, -1, keepdims=True)
    output = jnp.einsum("bhqk,bhkd->bhqd", weights / jnp.where(total == 0, 1, total), convert(value, weights.dtype))
    return convert(output, query.dtype), (jnp.log(total) + shift)[..., 0]


def _backward(g: Any, query: Any, key: Any, value: Any, output: Any, logsumexp: Any, is_causal: bool, mask: Any, scale: Any) -> Any:
    work = wide(query.dtype)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    g, out, q, k, v = (convert(part, work) for part in (g, output, query, key, value))
    scores = _scores(query, key, is_causal, mask, scale)
    finite = jnp.isfinite(logsumexp)[..., None]
    weights = jnp.where(finite, jnp.exp(scores - logsumexp[..., None]), 0)
    dv = jnp.einsum("bhqk,bhqd->bhkd", weights, g)
    dw = jnp.einsum("bhqd,bhkd->bhqk", g, v)
    ds = weights * (dw - jnp.sum(g * out, -1, keepdims=True))
    dq = jnp.einsum("bhqk,bhkd->bhqd", ds, k) * factor
    dk = jnp.einsum("bhqk,bhqd->bhkd", ds, q) * factor
    return convert(dq, query.dtype), convert(dk, key.dtype), convert(dv, value.dtype)


@lowers("_fused_sdp_choice")
def _choice(*_: Any, **__: Any) -> int:
    """Math: the composite, whose matrix products and softmax the compiler sees."""
    return 0


@lowers("_scaled_dot_product_flash_attention_for_cpu")
def _flash(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: Any = None, scale: float | None = None
) -> Any:
    return _forward(query, key, value, is_causal, attn_mask, scale)


@lowers("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_backward(
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    logsumexp: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    return _backward(g, query, key, value, output, logsumexp, is_causal, attn_mask, scale)
