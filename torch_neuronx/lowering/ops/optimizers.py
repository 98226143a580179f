"""Fused optimizer steps: lists of tensors in one call."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from torch_neuronx.lowering.promotion import convert
from torch_neuronx.lowering.table import lowers


def _decayed(value: Any, weight_decay: Any, change: Any) -> Any:
    """``value`` with ``change`` (of weight decay) added, unless the decay is 0; that may be an array, known only when the program runs."""
    if isinstance(weight_decay, (int, float)):
        return value + change if weight_decay else value
    return jnp.where(weight_decay != 0, value + change, value)


def _prepared(p: Any, g: Any, weight_decay: Any, maximize: bool, scale: Any) -> tuple[Any, Any]:
    """Unscaled gradient, and the same as the update uses it."""
    if scale is not None:
        g = g / convert(scale.reshape(()), g.dtype)
    used = -g if maximize else g
    return g, _decayed(used, weight_decay, weight_decay * p)


def _kept(found_inf: Any, old: Any, new: Any) -> Any:
    """``old`` where a GradScaler found an infinity: then the step does not happen. Numbers that are arrays have made ``new`` float32."""
    new = new.astype(old.dtype)
    return new if found_inf is None else jnp.where(found_inf.reshape(()) != 0, old, new)


def _adam(
    decoupled: bool,
    params: list[Any],
    grads: list[Any],
    exp_avgs: list[Any],
    exp_avg_sqs: list[Any],
    max_exp_avg_sqs: list[Any],
    steps: list[Any],
    *,
    lr: Any,
    beta1: Any,
    beta2: Any,
    weight_decay: Any,
    eps: Any,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> Any:
    """Returns what the in-place form writes, list by list."""
    results: tuple[list[Any], ...] = ([], [], [], [], [])
    for index, (p, g, m, v, step) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, steps, strict=True)):
        rate = convert(lr, p.dtype)
        old = (p, m, v)
        g, used = _prepared(p, g, 0 if decoupled else weight_decay, maximize, grad_scale)
        if decoupled:
            p = _decayed(p, weight_decay, -rate * weight_decay * p)
        m = m + (1 - beta1) * (used - m)
        v = v * beta2 + used * used * (1 - beta2)
        number = step.astype(jnp.float32)
        correction1 = 1 - jnp.power(jnp.asarray(beta1, jnp.float32), number)
        correction2 = 1 - jnp.power(jnp.asarray(beta2, jnp.float32), number)
        second = v
        if amsgrad:
            second = jnp.maximum(max_exp_avg_sqs[index], v)
            results[4].append(_kept(found_inf, max_exp_avg_sqs[index], second))
        denominator = jnp.sqrt(second) / jnp.sqrt(correction2).astype(v.dtype) + eps
        p = p - rate / correction1.astype(p.dtype) * (m / denominator)
        for part, (before, after) in enumerate(zip(old, (p, m, v), strict=True)):
            results[(0, 2, 3)[part]].append(_kept(found_inf, before, after))
        results[1].append(g)
    return results


@lowers("_fused_adam", "_fused_adam.tensor_lr")
def _fused_adam(*args: Any, **kwargs: Any) -> Any:
    return _adam(False, *args, **kwargs)


@lowers("_fused_adamw", "_fused_adamw.tensor_lr")
def _fused_adamw(*args: Any, **kwargs: Any) -> Any:
    return _adam(True, *args, **kwargs)


@lowers("_fused_sgd", "_fused_sgd.tensor_lr")
def _fused_sgd(
    params: list[Any],
    grads: list[Any],
    momentum_buffers: list[Any],
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> Any:
    results: tuple[list[Any], ...] = ([], [], [])
    for index, (p, g) in enumerate(zip(params, grads, strict=True)):
        g, used = _prepared(p, g, weight_decay, maximize, grad_scale)
        if momentum_buffers:
            before = momentum_buffers[index]
            buffer = used if is_first_step else momentum * before + (1 - dampening) * used
            used = used + momentum * buffer if nesterov else buffer
            results[2].append(_kept(found_inf, before, buffer))
        results[0].append(_kept(found_inf, p, p - convert(lr, p.dtype) * used))
        results[1].append(g)
    return results


@lowers("_fused_adagrad")
def _fused_adagrad(
    params: list[Any],
    grads: list[Any],
    sums: list[Any],
    steps: list[Any],
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> Any:
    results: tuple[list[Any], ...] = ([], [], [], [])
    for p, g, total, step in zip(params, grads, sums, steps, strict=True):
        g, used = _prepared(p, g, weight_decay, maximize, grad_scale)
        rate = convert(lr, p.dtype) / (1 + (step.astype(p.dtype) - 1) * lr_decay)
        after = total + used * used
        results[0].append(_kept(found_inf, p, p - rate * used / (jnp.sqrt(after) + eps)))
        results[1].append(g)
        results[2].append(_kept(found_inf, total, after))
        results[3].append(step)
    return results
