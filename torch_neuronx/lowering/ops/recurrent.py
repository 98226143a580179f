"""The fused recurrent cells, which PyTorch's LSTM and GRU take on every accelerator.

The workspace holds the activated gates, in the layout of the device's own kernels (``csrc/aten/rnn.cpp``).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from torch_neuronx.lowering.table import lowers


def _gates(gates: Any, bias: Any, count: int) -> list[Any]:
    return jnp.split(gates if bias is None else gates + bias, count, axis=1)


def _through_sigmoid(gradient: Any, y: Any) -> Any:
    return gradient * ((1 - y) * y)


def _through_tanh(gradient: Any, y: Any) -> Any:
    return gradient * (1 - y * y)


def _bias(gates: Any, wanted: bool) -> Any:
    return jnp.sum(gates, 0, dtype=gates.dtype) if wanted else None


@lowers("_thnn_fused_lstm_cell")
def _lstm_cell(input_gates: Any, hidden_gates: Any, cx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    raw = [a + b for a, b in zip(_gates(input_gates, input_bias, 4), _gates(hidden_gates, hidden_bias, 4), strict=True)]
    into, forget, cell, out = jax.nn.sigmoid(raw[0]), jax.nn.sigmoid(raw[1]), jnp.tanh(raw[2]), jax.nn.sigmoid(raw[3])
    cy = forget * cx + into * cell
    return out * jnp.tanh(cy), cy, jnp.concatenate([into, forget, cell, out], 1)


@lowers("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool) -> Any:
    into, forget, cell, out = jnp.split(workspace, 4, axis=1)
    tanh_cy = jnp.tanh(cy)
    grad_cell = jnp.zeros_like(cy) if grad_cy is None else grad_cy
    grad_out = jnp.zeros_like(out)
    if grad_hy is not None:
        grad_cell = grad_cell + _through_tanh(grad_hy * out, tanh_cy)
        grad_out = _through_sigmoid(grad_hy * tanh_cy, out)
    grad_into, grad_forget = _through_sigmoid(grad_cell * cell, into), _through_sigmoid(grad_cell * cx, forget)
    gates = jnp.concatenate([grad_into, grad_forget, _through_tanh(grad_cell * into, cell), grad_out], 1)
    return gates, grad_cell * forget, _bias(gates, has_bias)


@lowers("_thnn_fused_gru_cell")
def _gru_cell(input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    from_input, from_hidden = _gates(input_gates, input_bias, 3), _gates(hidden_gates, hidden_bias, 3)
    reset, update = jax.nn.sigmoid(from_input[0] + from_hidden[0]), jax.nn.sigmoid(from_input[1] + from_hidden[1])
    fresh = jnp.tanh(from_input[2] + reset * from_hidden[2])
    return (hx - fresh) * update + fresh, jnp.concatenate([reset, update, fresh, hx, from_hidden[2]], 1)


@lowers("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(grad_hy: Any, workspace: Any, has_bias: bool) -> Any:
    reset, update, fresh, hx, hidden = jnp.split(workspace, 5, axis=1)
    grad_fresh = _through_tanh(grad_hy * (1 - update), fresh)
    grad_update = _through_sigmoid(grad_hy * (hx - fresh), update)
    grad_reset = _through_sigmoid(grad_fresh * hidden, reset)
    of_input = jnp.concatenate([grad_reset, grad_update, grad_fresh], 1)
    of_hidden = jnp.concatenate([grad_reset, grad_update, grad_fresh * reset], 1)
    return of_input, of_hidden, grad_hy * update, _bias(of_input, has_bias), _bias(of_hidden, has_bias)
