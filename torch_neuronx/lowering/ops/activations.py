"""Activations with parameters, and the backward of activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from torch_neuronx.lowering import custom_calls
from torch_neuronx.lowering.ops.pointwise import like, sigmoid
from torch_neuronx.lowering.promotion import broadcast, convert, result_dtype, wide
from torch_neuronx.lowering.table import CallInfo, lowers, put

FAMILY = "activations"
Function = Callable[..., Any]


def _in_wide(function: Function) -> Function:
    """A lowering whose tensors are all converted to the compute dtype of the result; numbers stay."""

    def lowered(call: CallInfo, *args: Any, **kwargs: Any) -> Any:
        out = result_dtype(call)
        values = [convert(arg, wide(out)) if hasattr(arg, "dtype") else arg for arg in args]
        return convert(function(*values, **kwargs), out)

    return lowered


def gelu_of(x: Any, approximate: str = "none") -> Any:
    """GELU in the dtype of ``x``, by erf or ("tanh") by its approximation."""
    if approximate == "tanh":
        return 0.5 * x * (1 + lax.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return x * 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))


@lowers("gelu", call=True)
def _gelu(call: CallInfo, x: Any, approximate: str = "none") -> Any:
    out = result_dtype(call)
    work = convert(x, wide(out))
    replaced = custom_calls.elementwise(call, "AwsNeuronGeluApprxTanh" if approximate == "tanh" else "AwsNeuronGelu", work)
    return convert(gelu_of(work, approximate) if replaced is None else replaced, out)


@lowers("silu", call=True)
def _silu(call: CallInfo, x: Any) -> Any:
    out = result_dtype(call)
    work = convert(x, wide(out))
    replaced = custom_calls.elementwise(call, "AwsNeuronSilu", work)
    return convert(work * sigmoid(work) if replaced is None else replaced, out)


def _gelu_backward(gradient: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        tanh = lax.tanh(inner)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return gradient * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)
    cdf = 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))
    return gradient * (cdf + x * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


def _silu_backward(gradient: Any, x: Any) -> Any:
    sigmoid = lax.logistic(x)
    return gradient * sigmoid * (1 + x * (1 - sigmoid))


def _elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    return jnp.where(x > 0, x * scale, lax.expm1(x * input_scale) * (alpha * scale))


def _elu_backward(g: Any, alpha: float, scale: float, input_scale: float, is_result: bool, saved: Any) -> Any:
    negative = (saved + alpha * scale) if is_result else alpha * scale * jnp.exp(saved * input_scale)
    return jnp.where(saved <= 0, g * input_scale * negative, g * scale)


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return jnp.where(x * beta > threshold, x, lax.log1p(jnp.exp(jnp.minimum(x * beta, threshold))) / beta)


def _softplus_backward(g: Any, x: Any, beta: float, threshold: float) -> Any:
    return jnp.where(x * beta > threshold, g, g * lax.logistic(x * beta))


def _threshold_backward(g: Any, x: Any, threshold: float) -> Any:
    return jnp.where(x <= threshold, like(g, 0), g)


_ACTIVATIONS: dict[str, Function] = {
    "gelu_backward": _gelu_backward,
    "silu_backward": _silu_backward,
    "elu": _elu,
    "elu_backward": _elu_backward,
    "softplus": _softplus,
    "softplus_backward": _softplus_backward,
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, x * slope),
    "leaky_relu_backward": lambda g, x, slope, is_result: jnp.where(x > 0, g, g * slope),
    "threshold": lambda x, threshold, value: jnp.where(x <= threshold, like(x, value), x),
    "threshold_backward": lambda g, x, threshold: jnp.where(*broadcast(x <= threshold, like(g, 0), g)),
    "hardtanh": lambda x, low=-1, high=1: jnp.clip(x, like(x, low), like(x, high)),
    "hardtanh_backward": lambda g, x, low, high: jnp.where((x <= low) | (x >= high), like(g, 0), g),
    "hardswish_backward": lambda g, x: jnp.where(x <= -3, like(g, 0), jnp.where(x < 3, g * (x / 3 + 0.5), g)),
    "hardsigmoid_backward": lambda g, x: jnp.where((x > -3) & (x < 3), g / 6, like(g, 0)),
    "tanh_backward": lambda g, y: g * jnp.conj(1 - y * y),
    "sigmoid_backward": lambda g, y: g * jnp.conj((1 - y) * y),
    "softshrink": lambda x, limit=0.5: jnp.where(x > limit, x - limit, jnp.where(x < -limit, x + limit, x * 0)),
    "hardshrink": lambda x, limit=0.5: jnp.where((x >= -limit) & (x <= limit), like(x, 0), x),
    "softshrink_backward": lambda g, x, limit: jnp.where((x >= -limit) & (x <= limit), like(g, 0), g),
    "hardshrink_backward": lambda g, x, limit: jnp.where((x >= -limit) & (x <= limit), like(g, 0), g),
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": special.i1,
    "_prelu_kernel": lambda x, weight: jnp.where(x > 0, x, x * weight),
}
for _name, _function in _ACTIVATIONS.items():
    put(_name, _in_wide(_function), FAMILY, call=True)
