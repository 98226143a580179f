"""Softmax and the normalisations. Statistics are taken in float32 for the 16-bit floats."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering import custom_calls
from torch_neuronx.lowering.promotion import convert, dim_of, result_dtype, wide
from torch_neuronx.lowering.table import CallInfo, lowers


def _largest(x: Any, dim: int) -> Any:
    return jnp.max(x, dim, keepdims=True) if x.shape[dim] else jnp.zeros((), x.dtype)


@lowers("_safe_softmax", call=True)
def _safe_softmax(call: CallInfo, x: Any, dim: int, _dtype: Any = None) -> Any:
    """0 for a row that is -inf throughout, where ``_softmax`` gives NaN: all of a query's keys are masked."""
    masked = x == -jnp.inf
    masked = jnp.all(masked, dim_of(dim, x.ndim), keepdims=True) if x.ndim else masked
    made = _softmax(call, x, dim)
    return jnp.where(masked, jnp.zeros_like(made), made)


@lowers("_softmax", call=True)
def _softmax(call: CallInfo, x: Any, dim: int, half_to_float: Any = False) -> Any:
    out = result_dtype(call)
    x = convert(x, wide(out))
    if x.ndim == 0:
        return convert(jnp.ones_like(x), out)
    dim = dim_of(dim, x.ndim)
    replaced = custom_calls.softmax(call, x, dim)
    if replaced is not None:
        return convert(replaced, out)
    exponentials = jnp.exp(x - _largest(x, dim))
    return convert(exponentials / jnp.sum(exponentials, dim, keepdims=True), out)


@lowers("_log_softmax", call=True)
def _log_softmax(call: CallInfo, x: Any, dim: int, half_to_float: bool = False) -> Any:
    out = result_dtype(call)
    x = convert(x, wide(out))
    if x.ndim == 0:
        return convert(jnp.zeros_like(x), out)
    dim = dim_of(dim, x.ndim)
    shifted = x - _largest(x, dim)
    return convert(shifted - jnp.log(jnp.sum(jnp.exp(shifted), dim, keepdims=True)), out)


@lowers("_softmax_backward_data", call=True)
def _softmax_backward(call: CallInfo, gradient: Any, output: Any, dim: int, _dtype: Any) -> Any:
    out = result_dtype(call)
    gradient, output = convert(gradient, wide(gradient.dtype)), convert(output, wide(gradient.dtype))
    if output.ndim == 0:
        return jnp.zeros((), out)
    return convert(output * (gradient - jnp.sum(gradient * output, dim, keepdims=True)), out)


@lowers("_log_softmax_backward_data", call=True)
def _log_softmax_backward(call: CallInfo, gradient: Any, output: Any, dim: int, _dtype: Any) -> Any:
    out = result_dtype(call)
    gradient, output = convert(gradient, wide(gradient.dtype)), convert(output, wide(gradient.dtype))
    if output.ndim == 0:
        return jnp.zeros((), out)
    return convert(gradient - jnp.exp(output) * jnp.sum(gradient, dim, keepdims=True), out)


@lowers("native_layer_norm", call=True)
def _layer_norm(call: CallInfo, x: Any, normalized: list[int], weight: Any, bias: Any, eps: float) -> Any:
    work = convert(x, wide(x.dtype))
    dims = tuple(range(x.ndim - len(normalized), x.ndim))
    number = math.prod(normalized)
    mean = jnp.sum(work, dims, keepdims=True) / number
    centred = work - mean
    rstd = lax.rsqrt(jnp.sum(centred * centred, dims, keepdims=True) / number + eps)
    result = centred * rstd
    if weight is not None:
        result = result * convert(weight, result.dtype)
    if bias is not None:
        result = result + convert(bias, result.dtype)
    return convert(result, result_dtype(call, 0)), convert(mean, result_dtype(call, 1)), convert(rstd, result_dtype(call, 2))


@lowers("native_layer_norm_backward")
def _layer_norm_backward(
    gradient: Any, x: Any, normalized: list[int], mean: Any, rstd: Any, weight: Any, bias: Any, mask: list[bool]
) -> Any:
    work = wide(x.dtype)
    g, wide_x = convert(gradient, work), convert(x, work)
    mean, rstd = convert(mean, work), convert(rstd, work)
    lead = tuple(range(x.ndim - len(normalized)))
    dims = tuple(range(x.ndim - len(normalized), x.ndim))
    number = math.prod(normalized)
    normal = (wide_x - mean) * rstd
    scaled = g if weight is None else g * convert(weight, work)
    results: list[Any] = [None, None, None]
    if mask[0]:
        inner = scaled - jnp.sum(scaled, dims, keepdims=True) / number - normal * jnp.sum(scaled * normal, dims, keepdims=True) / number
        results[0] = convert(inner * rstd, x.dtype)
    if mask[1] and weight is not None:
        results[1] = convert(jnp.sum(g * normal, lead), weight.dtype)
    if mask[2] and bias is not None:
        results[2] = convert(jnp.sum(g, lead), bias.dtype)
    return tuple(results)


@lowers("_fused_rms_norm", call=True)
def _rms_norm(call: CallInfo, x: Any, normalized: list[int], weight: Any, eps: float | None) -> Any:
    work = convert(x, wide(x.dtype))
    dims = tuple(range(x.ndim - len(normalized), x.ndim))
    eps = float(jnp.finfo(work.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(jnp.sum(work * work, dims, keepdims=True) / math.prod(normalized) + eps)
    scale = jnp.ones(tuple(normalized), work.dtype) if weight is None else convert(weight, work.dtype)
    replaced = custom_calls.rms_norm(call, work, scale, eps) if len(normalized) == 1 else None
    result = work * rstd * scale if replaced is None else replaced
    return convert(result, result_dtype(call, 0)), convert(rstd, result_dtype(call, 1))
