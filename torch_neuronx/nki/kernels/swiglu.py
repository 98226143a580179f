"""The gated MLP of Llama: ``(silu(x Wg) * (x Wu)) Wd``."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import BANK, P, count, evacuate, itemsize, load_steps, spans, transpose, widest

_WEIGHT_BYTES = 32 * 1024  # of a partition, for a block of one weight


@nki.jit
def swiglu_mlp(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> Any:
    """The hidden activations are made transposed, ``[F, tokens]``, which is what the down projection contracts over: they never leave SBUF.

    Args:
        x: ``[tokens, H]``.
        w_gate, w_up: ``[H, F]``.
        w_down: ``[F, H]``.

    Returns:
        ``[tokens, H]``.
    """
    tokens, hidden = x.shape
    inner = w_gate.shape[1]
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for t0, n in spans(tokens, BANK):
        x_t = _load_turned(x, t0, n)
        gated = nl.ndarray((min(P, inner), count(inner, P), n), dtype=x.dtype, buffer=nl.sbuf)
        block = widest(1024, _WEIGHT_BYTES, itemsize(x) * count(hidden, P))
        for f0, columns in spans(inner, block):
            gate_weights, up_weights = load_steps(w_gate, f0, columns), load_steps(w_up, f0, columns)
            for i0, width in spans(columns, P):
                gate = _project(gate_weights, i0, width, x_t, hidden)
                up = _project(up_weights, i0, width, x_t, hidden)
                active = nl.ndarray((width, n), dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=active, op=nl.silu, data=gate)
                nisa.tensor_tensor(dst=gated[0:width, (f0 + i0) // P, :], data1=active, data2=up, op=nl.multiply)
        _project_down(out, t0, gated, w_down, n)
    return out


def _load_turned(x: Any, t0: int, n: int) -> Any:
    """``[128, H / 128, tokens]``."""
    hidden = x.shape[1]
    turned = nl.ndarray((min(P, hidden), count(hidden, P), n), dtype=x.dtype, buffer=nl.sbuf)
    for start, rows in spans(n, P):
        tile = nl.ndarray((rows, hidden), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[t0 + start : t0 + start + rows, :])
        for k, (h0, depth) in enumerate(spans(hidden, P)):
            transpose(turned[0:depth, k, start : start + rows], tile[:, h0 : h0 + depth])
    return turned


def _project(weights: Any, start: int, width: int, x_t: Any, hidden: int) -> Any:
    """``weights.T @ x.T``: ``[width, tokens]`` in PSUM."""
    product = nl.ndarray((width, x_t.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for k, (_, depth) in enumerate(spans(hidden, P)):
        nisa.nc_matmul(dst=product, stationary=weights[0:depth, k, start : start + width], moving=x_t[0:depth, k, :])
    return product


def _project_down(out: Any, t0: int, gated: Any, w_down: Any, n: int) -> None:
    inner, hidden = w_down.shape
    turn = 0
    for h0, columns in spans(hidden, widest(1024, 2 * _WEIGHT_BYTES, itemsize(out) * count(inner, P))):
        weights = load_steps(w_down, h0, columns)
        for start, rows in spans(n, P):
            result = nl.ndarray((rows, columns), dtype=out.dtype, buffer=nl.sbuf)
            for j0, width in spans(columns, BANK):
                product = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
                for k, (_, depth) in enumerate(spans(inner, P)):
                    moving = weights[0:depth, k, j0 : j0 + width]
                    nisa.nc_matmul(dst=product, stationary=gated[0:depth, k, start : start + rows], moving=moving)
                evacuate(result[:, j0 : j0 + width], product, turn)
                turn += 1
            nisa.dma_copy(dst=out[t0 + start : t0 + start + rows, h0 : h0 + columns], src=result)
