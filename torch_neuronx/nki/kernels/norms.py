"""Row-wise kernels: softmax, RMS norm, layer norm. A tile is 128 rows; a row lies in one partition."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import P, count, itemsize, load_row, spans

_STATS = 512  # elements that one bn_stats instruction takes


@nki.jit
def softmax(x: Any) -> Any:
    """Softmax over the last dimension of ``x`` ``[rows, columns]``; float32 arithmetic, result of the dtype of ``x``."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for r0, n in spans(rows, P):
        tile = nl.ndarray((n, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[r0 : r0 + n, :])
        negative_max = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=tile, axis=1, negate=True)
        exponentials = nl.ndarray((n, columns), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=exponentials, op=nl.exp, data=tile, reduce_op=nl.add, reduce_res=total, bias=negative_max)
        nisa.reciprocal(dst=total, data=total)
        result = nl.ndarray((n, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=exponentials, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[r0 : r0 + n, :], src=result)
    return out


@nki.jit
def rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension of ``x`` ``[rows, columns]``; ``weight`` is ``[columns]``.

    With 16-bit inputs the normalised row is rounded to their dtype before it is multiplied by the weight.
    """
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    scale = load_row(weight, min(rows, P))
    epsilon = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)
    for r0, n in spans(rows, P):
        tile = nl.ndarray((n, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[r0 : r0 + n, :])
        squares = nl.ndarray((n, columns), dtype=x.dtype, buffer=nl.sbuf)  # not used; their sum is float32
        root = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=squares, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=root)
        nisa.activation(dst=root, op=nl.rsqrt, data=root, scale=1.0 / columns, bias=epsilon[0:n, :])
        result = nl.ndarray((n, columns), dtype=x.dtype, buffer=nl.sbuf)
        _scale_rows(result, tile, root, scale[0:n, :])
        nisa.dma_copy(dst=out[r0 : r0 + n, :], src=result)
    return out


def _scale_rows(dst: Any, tile: Any, factor: Any, scale: Any) -> None:
    """``dst = tile * factor * scale``. In 16 bits two instructions of the Vector Engine's wide modes beat one of two inputs."""
    if itemsize(tile) == 2:
        normal = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=normal, data=tile, op0=nl.multiply, operand0=factor, engine=nisa.engine.vector)
        nisa.tensor_tensor(dst=dst, data1=normal, data2=scale, op=nl.multiply, engine=nisa.engine.vector)
    else:
        nisa.scalar_tensor_tensor(dst=dst, data=tile, op0=nl.multiply, operand0=factor, op1=nl.multiply, operand1=scale)


@nki.jit
def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension of ``x`` ``[rows, columns]``.

    With 16-bit inputs the normalised row is rounded to their dtype before it is multiplied by the weight.
    """
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    scale, shift = load_row(weight, min(rows, P)), load_row(bias, min(rows, P))
    epsilon = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=epsilon, value=eps)
    for r0, n in spans(rows, P):
        tile = nl.ndarray((n, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[r0 : r0 + n, :])
        moments = _mean_and_variance(tile)
        root = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=root, op=nl.rsqrt, data=moments[:, 1:2], bias=epsilon[0:n, :])
        # x * root - mean * root on the Scalar Engine, so that the Vector Engine keeps the two products with tiles.
        centre = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=centre, data=moments[:, 0:1], op0=nl.multiply, operand0=root, op1=nl.multiply, operand1=-1.0)
        normal = nl.ndarray((n, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.activation(dst=normal, op=nl.copy, data=tile, scale=root, bias=centre)
        nisa.tensor_tensor(dst=normal, data1=normal, data2=scale[0:n, :], op=nl.multiply)
        result = nl.ndarray((n, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=result, data1=normal, data2=shift[0:n, :], op=nl.add)
        nisa.dma_copy(dst=out[r0 : r0 + n, :], src=result)
    return out


def _mean_and_variance(tile: Any) -> Any:
    """``[rows, 2]``: mean and variance of each row, by the Vector Engine's batch-norm instructions."""
    n, columns = tile.shape
    parts = count(columns, _STATS)
    stats = nl.ndarray((n, parts * 6), dtype=nl.float32, buffer=nl.sbuf)
    for k, (start, length) in enumerate(spans(columns, _STATS)):
        nisa.bn_stats(dst=stats[:, 6 * k : 6 * k + 6], data=tile[:, start : start + length])
    moments = nl.ndarray((n, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.bn_aggr(dst=moments, data=stats)
    return moments
