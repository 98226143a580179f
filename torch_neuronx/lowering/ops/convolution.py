"""Convolution of 1 to 3 dimensions, transposed, grouped, dilated; its gradients are transposes of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import convert, wide
from torch_neuronx.lowering.table import lowers


def _spread(values: list[int], rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)


def _numbers(rank: int) -> lax.ConvDimensionNumbers:
    order = tuple(range(rank + 2))
    return lax.ConvDimensionNumbers(order, order, order)


def _forward(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int) -> Any:
    rank = weight.ndim - 2
    stride, padding, dilation, output_padding = (_spread(v, rank) for v in (stride, padding, dilation, output_padding))
    if not transposed:
        return lax.conv_general_dilated(
            x,
            weight,
            stride,
            [(pad, pad) for pad in padding],
            rhs_dilation=dilation,
            dimension_numbers=_numbers(rank),
            feature_group_count=groups,
            preferred_element_type=wide(x.dtype),
        )
    # Weight (in, out / groups, *window) -> (out, in / groups, *window), mirrored; the stride spreads the input.
    inner, outer, *window = weight.shape
    kernel = weight.reshape(groups, inner // groups, outer, *window).swapaxes(1, 2)
    kernel = lax.rev(kernel.reshape(groups * outer, inner // groups, *window), range(2, 2 + rank))
    pads = [
        (step * (size - 1) - pad, step * (size - 1) - pad + extra)
        for step, size, pad, extra in zip(dilation, window, padding, output_padding, strict=True)
    ]
    return lax.conv_general_dilated(
        x,
        kernel,
        [1] * rank,
        pads,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        dimension_numbers=_numbers(rank),
        feature_group_count=groups,
        preferred_element_type=wide(x.dtype),
    )


@lowers("convolution", "convolution_overrideable")
def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Any:
    batched = x if x.ndim == weight.ndim else x[None]
    result = _forward(batched, weight, stride, padding, dilation, transposed, output_padding, groups)
    if bias is not None:
        result = result + convert(bias, result.dtype).reshape((1, -1) + (1,) * (weight.ndim - 2))
    return convert(result if x.ndim == weight.ndim else result[0], x.dtype)


@lowers("_convolution")
def _convolution_with_flags(x: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    return _convolution(x, weight, bias, *settings[:6])


@lowers("convolution_backward", "convolution_backward_overrideable")
def _convolution_backward(gradient: Any, x: Any, weight: Any, *settings: Any) -> Any:
    """Gradients of input, weight and bias, where the mask asks for them."""
    if len(settings) == 8:  # bias_sizes first, which the overrideable form lacks
        settings = settings[1:]
    *geometry, mask = settings
    work = wide(x.dtype)
    batched = x if x.ndim == weight.ndim else x[None]
    g = convert(gradient if x.ndim == weight.ndim else gradient[None], work)
    wide_x, wide_weight = convert(batched, work), convert(weight, work)
    results: list[Any] = [None, None, None]
    if mask[0]:
        (results[0],) = jax.linear_transpose(lambda v: _forward(v, wide_weight, *geometry), wide_x)(g)
        results[0] = convert(results[0], x.dtype).reshape(x.shape)
    if mask[1]:
        (results[1],) = jax.linear_transpose(lambda v: _forward(wide_x, v, *geometry), wide_weight)(g)
        results[1] = convert(results[1], weight.dtype)
    if mask[2]:
        results[2] = convert(jnp.sum(g, (0, *range(2, g.ndim))), weight.dtype)
    return tuple(results)
