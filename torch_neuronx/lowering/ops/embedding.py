"""Rows of a table by index, and the gradients of the table."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.ops.reduction import p_norm
from torch_neuronx.lowering.promotion import convert, wide
from torch_neuronx.lowering.table import CallInfo, NotLowered, lowers


@lowers("embedding")
def _embedding(weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:
    return jnp.take(weight, indices, axis=0, mode="clip")


@lowers("embedding_renorm")
def _embedding_renorm(weight: Any, indices: Any, max_norm: Any, norm_type: Any) -> Any:
    """Rows that ``indices`` name and that are longer than ``max_norm`` are shortened to it (``Embedding(max_norm=...)``)."""
    work = wide(weight.dtype)
    rows = convert(weight, work)
    norm = p_norm(jnp.abs(rows), norm_type, (1,))
    used = jnp.zeros((weight.shape[0],), jnp.bool_).at[indices.reshape(-1)].set(True)
    shortened = convert(rows * (max_norm / (norm + 1e-7)).astype(work)[:, None], weight.dtype)
    return jnp.where((used & (norm > max_norm))[:, None], shortened, weight)


@lowers("embedding_dense_backward")
def _embedding_backward(gradient: Any, indices: Any, rows: int, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    work = wide(gradient.dtype)
    flat = indices.reshape(-1)
    g = convert(gradient, work).reshape(flat.shape[0], -1)
    counted = (flat != padding_idx) if padding_idx >= 0 else jnp.ones(flat.shape, jnp.bool_)
    g = jnp.where(counted[:, None], g, 0)
    if scale_grad_by_freq:
        frequency = jnp.zeros((rows,), jnp.int32).at[flat].add(1)
        g = g / frequency[flat][:, None].astype(work)
    return convert(jnp.zeros((rows, g.shape[1]), work).at[flat].add(g), gradient.dtype)


def _bags(indices: Any, offsets: Any, include_last_offset: bool) -> Any:
    """Bag of each index."""
    place = lax.iota(offsets.dtype, indices.shape[0])
    starts = offsets[:-1] if include_last_offset else offsets
    return jnp.sum(place[:, None] >= starts[None, :], -1, dtype=jnp.int64) - 1


def _fitting(call: CallInfo, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the backward pass does not need is empty in PyTorch, which depends on mode and padding."""
    fitted = [
        value if tuple(value.shape) == out.shape else jnp.zeros(out.shape, value.dtype)
        for value, out in zip(results, call.out, strict=True)
    ]
    return tuple(fitted)


@lowers("_embedding_bag", "_embedding_bag_forward_only", call=True)
def _embedding_bag(
    call: CallInfo,
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sum (0), mean (1) or maximum (2) of the rows of each bag; also what the backward pass wants to know."""
    number = offsets.shape[0] - (1 if include_last_offset else 0)
    bags = _bags(indices, offsets, include_last_offset)
    counted = indices != padding_idx if padding_idx >= 0 else jnp.ones(indices.shape, jnp.bool_)
    rows = convert(jnp.take(weight, indices, axis=0, mode="clip"), wide(weight.dtype))
    sizes = jnp.zeros((number,), indices.dtype).at[bags].add(counted.astype(indices.dtype))
    if mode == 2:
        lowest = jnp.where(counted[:, None], rows, -jnp.inf)
        best = jnp.full((number, weight.shape[1]), -jnp.inf, rows.dtype).at[bags].max(lowest)
        result = jnp.where(sizes[:, None] > 0, best, 0)
        where = jnp.where(rows == best[bags], indices[:, None], -1)
        largest = jnp.full((number, weight.shape[1]), -1, indices.dtype).at[bags].max(where)
        return _fitting(call, (convert(result, weight.dtype), bags.astype(indices.dtype), sizes, jnp.where(largest < 0, 0, largest)))
    if per_sample_weights is not None:
        rows = rows * convert(per_sample_weights, rows.dtype)[:, None]
    total = jnp.zeros((number, weight.shape[1]), rows.dtype).at[bags].add(jnp.where(counted[:, None], rows, 0))
    if mode == 1:
        total = total / jnp.maximum(sizes, 1)[:, None].astype(total.dtype)
    return _fitting(call, (convert(total, weight.dtype), bags.astype(indices.dtype), sizes, sizes))


@lowers("_embedding_bag_dense_backward")
def _embedding_bag_backward(
    gradient: Any,
    indices: Any,
    bags: Any,
    sizes: Any,
    largest: Any,
    rows: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:
    g = convert(gradient, wide(gradient.dtype))
    table = jnp.zeros((rows, g.shape[1]), g.dtype)
    if mode == 2:
        columns = lax.broadcasted_iota(jnp.int32, largest.shape, 1)
        return convert(table.at[largest, columns].add(jnp.where(sizes[:, None] > 0, g, 0)), gradient.dtype)
    each = g[bags]
    if mode == 1:
        each = each / jnp.maximum(sizes, 1)[bags][:, None].astype(g.dtype)
    if per_sample_weights is not None:
        each = each * convert(per_sample_weights, g.dtype)[:, None]
    if padding_idx >= 0:
        each = jnp.where((indices != padding_idx)[:, None], each, 0)
    if scale_grad_by_freq:
        each = each / jnp.zeros((rows,), jnp.int32).at[indices].add(1)[indices][:, None].astype(g.dtype)
    return convert(table.at[indices].add(each), gradient.dtype)


@lowers("_embedding_bag_backward")
def _embedding_bag_any_backward(
    gradient: Any,
    indices: Any,
    offsets: Any,
    bags: Any,
    sizes: Any,
    largest: Any,
    rows: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:
    """The dense gradient. Bags and sizes are counted again where the forward pass left them out."""
    if sparse:
        raise NotLowered("aten::_embedding_bag_backward", "the chip has no sparse tensors, so no sparse gradients")
    number = gradient.shape[0]
    bags = bags if bags.shape == indices.shape else _bags(indices, offsets, offsets.shape[0] == number + 1)
    sizes = sizes if sizes.shape[0] == number else jnp.zeros((number,), indices.dtype).at[bags].add(1)
    return _embedding_bag_backward(gradient, indices, bags, sizes, largest, rows, scale_grad_by_freq, mode, per_sample_weights, padding_idx)


@lowers("_embedding_bag_per_sample_weights_backward")
def _per_sample_weights_backward(
    gradient: Any, weight: Any, indices: Any, offsets: Any, bags: Any, mode: int, padding_idx: int = -1
) -> Any:
    products = jnp.sum(gradient[bags] * weight[indices], -1)
    return jnp.where(indices != padding_idx, products, 0) if padding_idx >= 0 else products
