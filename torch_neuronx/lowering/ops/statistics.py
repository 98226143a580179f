"""Histograms, covariance, reductions of segments."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import convert, is_complex, result_dtype
from torch_neuronx.lowering.table import CallInfo, lowers


def _bin_of(x: Any, low: Any, high: Any, bins: int) -> Any:
    """Bin of each element; ``bins`` for what lies outside. The last bin includes its upper edge."""
    place = jnp.floor((x - low) / (high - low) * bins).astype(jnp.int32)
    return jnp.where((x >= low) & (x <= high), jnp.minimum(place, bins - 1), bins)


def _range(x: Any, low: Any, high: Any, given: bool) -> tuple[Any, Any]:
    """The data's own when none is given; widened when empty."""
    if not given:
        low = jnp.min(x) if x.size else jnp.zeros((), x.dtype)
        high = jnp.max(x) if x.size else jnp.ones((), x.dtype)
    low, high = convert(low, x.dtype), convert(high, x.dtype)
    same = low == high
    return jnp.where(same, low - 1, low), jnp.where(same, high + 1, high)


@lowers("histc")
def _histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    flat = x.reshape(-1)
    low, high = _range(flat, min, max, given=min != max)
    return jnp.zeros((bins,), x.dtype).at[_bin_of(flat, low, high, bins)].add(1, mode="drop")


@lowers("histogram.bin_ct")
def _histogram(x: Any, bins: int = 100, *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    flat = x.reshape(-1)
    if range is None:
        low, high = _range(flat, 0, 0, given=False)
    else:
        low, high = _range(flat, range[0], range[1], given=True)
    share = lax.iota(x.dtype, bins + 1) / bins
    edges = jnp.where(share < 0.5, low + (high - low) * share, high - (high - low) * (1 - share))
    amounts = jnp.ones_like(flat) if weight is None else weight.reshape(-1)
    counts = jnp.zeros((bins,), x.dtype).at[_bin_of(flat, low, high, bins)].add(amounts, mode="drop")
    if density:
        counts = counts / jnp.sum(counts) / jnp.diff(edges)
    return counts, edges


@lowers("cov", call=True)
def _cov(call: CallInfo, x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    out = result_dtype(call)
    rows = convert(x, out).reshape(-1, x.shape[-1] if x.ndim else 1)
    weights = jnp.ones((rows.shape[-1],), rows.real.dtype)
    if fweights is not None:
        weights = weights * convert(fweights.reshape(-1), weights.dtype)
    if aweights is not None:
        weights = weights * convert(aweights.reshape(-1), weights.dtype)
    total = jnp.sum(weights)
    mean = jnp.sum(rows * weights, -1, keepdims=True) / total
    if correction == 0 or aweights is None:
        freedom = total - correction
    else:
        freedom = total - correction * jnp.sum(weights * convert(aweights.reshape(-1), weights.dtype)) / total
    centred = rows - mean
    adjoint = jnp.conj(centred) if is_complex(centred) else centred
    result = (centred * weights) @ adjoint.T / jnp.maximum(freedom, 0)
    return result.reshape(tuple(call.out.shape)) if call.out is not None else result.squeeze()


@lowers("segment_reduce")
def _segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Any:
    """Along ``axis``, which is the last dimension of ``lengths`` or ``offsets``."""
    starts = lax.cumsum(lengths, lengths.ndim - 1) - lengths if offsets is None else offsets[..., :-1]
    ends = starts + lengths if offsets is None else offsets[..., 1:]
    place = lax.iota(starts.dtype, data.shape[axis])
    inside = (place >= starts[..., None]) & (place < ends[..., None])  # (..., segments, elements)
    number = inside.shape[-2]
    lead = data.shape[:axis]
    tail = data.shape[axis + 1 :]
    chosen = inside.reshape((*lead, number, data.shape[axis], *[1] * len(tail)))
    values = jnp.expand_dims(data, axis)
    start = {"sum": 0, "mean": 0, "prod": 1, "max": -jnp.inf, "min": jnp.inf}[reduce]
    first = jnp.asarray(start if initial is None else initial, data.dtype)
    neutral = jnp.asarray(start, data.dtype)
    masked = jnp.where(chosen, values, neutral)
    function: Any = {"sum": jnp.sum, "mean": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min}[reduce]
    result = function(masked, axis + 1)
    if reduce in ("sum", "mean"):
        result = result + first
    elif reduce == "prod":
        result = result * first
    else:
        result = (jnp.maximum if reduce == "max" else jnp.minimum)(result, first)
    if reduce == "mean":
        size = jnp.sum(chosen, axis + 1)
        mean = result / jnp.maximum(size, 1)
        result = jnp.where(size == 0, jnp.asarray(jnp.nan if initial is None else initial, data.dtype), mean)
    return result
