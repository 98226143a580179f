"""Cross entropy of rows of logits, forward and backward, without a copy of the logits in float32."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import P, spans

CHUNK = 4096  # classes that are in SBUF at a time


@nki.jit
def cross_entropy(logits: Any, target: Any) -> Any:
    """Loss of each row: ``logsumexp(row) - row[target]``.

    Args:
        logits: ``[rows, classes]``; rows x classes below 2^31.
        target: int32 ``[rows, 1]``.

    Returns:
        ``(loss, lse)``, both ``[rows, 1]`` float32; ``lse`` is the row's logarithm of the sum of exponentials, for the backward pass.
    """
    rows, classes = logits.shape
    loss = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    lse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    for r0, n in spans(rows, P):
        largest = total = None
        for c0, width in spans(classes, CHUNK):
            tile = nl.ndarray((n, width), dtype=logits.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=logits[r0 : r0 + n, c0 : c0 + width])
            largest, total = _add_chunk(largest, total, tile)
        result = _column(n)
        nisa.activation(dst=result, op=nl.log, data=total)
        nisa.tensor_tensor(dst=result, data1=result, data2=largest, op=nl.add)
        nisa.dma_copy(dst=lse[r0 : r0 + n, :], src=result)
        picked = _pick(logits, target, r0, n)
        nisa.tensor_tensor(dst=picked, data1=result, data2=picked, op=nl.subtract)
        nisa.dma_copy(dst=loss[r0 : r0 + n, :], src=picked)
    return loss, lse


def _add_chunk(largest: Any, total: Any, tile: Any) -> tuple[Any, Any]:
    """The running maximum and the running sum of exponentials after one more chunk."""
    n, width = tile.shape
    new_largest = _column(n)
    nisa.tensor_reduce(dst=new_largest, op=nl.maximum, data=tile, axis=1)
    if largest is not None:
        nisa.tensor_tensor(dst=new_largest, data1=new_largest, data2=largest, op=nl.maximum)
    shift = _column(n)
    nisa.tensor_scalar(dst=shift, data=new_largest, op0=nl.multiply, operand0=-1.0)
    exponentials = nl.ndarray((n, width), dtype=nl.bfloat16, buffer=nl.sbuf)  # only the sum, which is float32, is used
    new_total = _column(n)
    nisa.activation_reduce(dst=exponentials, op=nl.exp, data=tile, reduce_op=nl.add, reduce_res=new_total, bias=shift)
    if total is not None:
        correction = _column(n)
        nisa.activation(dst=correction, op=nl.exp, data=largest, bias=shift)
        nisa.scalar_tensor_tensor(dst=new_total, data=total, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=new_total)
    return new_largest, new_total


def _pick(logits: Any, target: Any, r0: int, n: int) -> Any:
    """``logits[row, target[row]]`` as float32 ``[n, 1]``: a gather of one element per partition."""
    rows, classes = logits.shape
    index = nl.ndarray((n, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=target[r0 : r0 + n, :])
    first = nl.ndarray((n, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=first, pattern=[[1, 1]], offset=r0 * classes, channel_multiplier=classes)
    nisa.tensor_tensor(dst=index, data1=index, data2=first, op=nl.add, engine=nisa.engine.gpsimd)  # exact: 32-bit integers
    found = nl.ndarray((n, 1), dtype=logits.dtype, buffer=nl.sbuf)
    elements = logits.reshape((rows * classes, 1))
    nisa.dma_copy(dst=found, src=elements.ap(pattern=[[1, n], [1, 1]], offset=0, vector_offset=index, indirect_dim=0))
    picked = _column(n)
    nisa.tensor_copy(dst=picked, src=found, engine=nisa.engine.vector)
    return picked


@nki.jit
def cross_entropy_backward(logits: Any, target: Any, lse: Any, d_loss: Any) -> Any:
    """``(softmax(row) - onehot(target)) * d_loss``.

    Args:
        logits, target, lse: of the forward pass.
        d_loss: ``[rows, 1]`` float32.

    Returns:
        ``[rows, classes]`` of the dtype of the logits.
    """
    rows, classes = logits.shape
    out = nl.ndarray(logits.shape, dtype=logits.dtype, buffer=nl.shared_hbm)
    for r0, n in spans(rows, P):
        shift, gradient, wanted = _load_column(lse, r0, n), _load_column(d_loss, r0, n), _load_column(target, r0, n)
        nisa.tensor_scalar(dst=shift, data=shift, op0=nl.multiply, operand0=-1.0)
        for c0, width in spans(classes, CHUNK):
            tile = nl.ndarray((n, width), dtype=logits.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=logits[r0 : r0 + n, c0 : c0 + width])
            probabilities = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=probabilities, op=nl.exp, data=tile, bias=shift)
            classes_here = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.iota(dst=classes_here, pattern=[[1, width]], offset=c0)
            nisa.tensor_scalar(dst=classes_here, data=classes_here, op0=nl.equal, operand0=wanted)
            nisa.tensor_tensor(dst=probabilities, data1=probabilities, data2=classes_here, op=nl.subtract)
            result = nl.ndarray((n, width), dtype=logits.dtype, buffer=nl.sbuf)
            nisa.activation(dst=result, op=nl.copy, data=probabilities, scale=gradient)
            nisa.dma_copy(dst=out[r0 : r0 + n, c0 : c0 + width], src=result)
    return out


def _load_column(source: Any, r0: int, n: int) -> Any:
    """``[n, 1]`` as float32."""
    tile = _column(n)
    nisa.dma_copy(dst=tile, src=source[r0 : r0 + n, :])
    return tile


def _column(n: int) -> Any:
    return nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
