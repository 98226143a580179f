"""The selective scan of Mamba: a linear recurrence along the sequence, one partition a channel, in the Vector Engine's scan instruction."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import P, spans

STEPS = 2048  # of the sequence that are in SBUF at a time


@nki.jit
def selective_scan(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
    """``h[t] = exp(delta[t] A) h[t-1] + delta[t] u[t] B[t]``, ``y[t] = sum over states of h[t] C[t]``.

    Args:
        delta, u: ``[batch, channels, steps]``.
        a: ``[channels, states]``.
        b, c: ``[batch, states, steps]``.

    Returns:
        y: ``[batch, channels, steps]``.
    """
    batch, channels, steps = delta.shape
    states = a.shape[1]
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    for i in range(batch):
        for c0, n in spans(channels, P):
            decay = nl.ndarray((n, states), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=decay, src=a[c0 : c0 + n, :])
            last = nl.ndarray((n, states), dtype=nl.float32, buffer=nl.sbuf)  # the recurrence's value where the previous chunk ended
            nisa.memset(dst=last, value=0.0)
            for t0, width in spans(steps, STEPS):
                rate = _load(delta[i, c0 : c0 + n, t0 : t0 + width])
                drive = _load(u[i, c0 : c0 + n, t0 : t0 + width])
                nisa.tensor_tensor(dst=drive, data1=drive, data2=rate, op=nl.multiply)
                total = _one_chunk(rate, drive, decay, last, b, c, (i, t0))
                result = nl.ndarray((n, width), dtype=delta.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=result, src=total, engine=nisa.engine.vector)
                nisa.dma_copy(dst=out[i, c0 : c0 + n, t0 : t0 + width], src=result)
    return out


def _one_chunk(rate: Any, drive: Any, decay: Any, last: Any, b: Any, c: Any, where: tuple[int, int]) -> Any:
    """The outputs of a chunk, summed over states; updates ``last``."""
    n, width = rate.shape
    total = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
    for state in range(decay.shape[1]):
        column = slice(state, state + 1)
        kept = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=kept, op=nl.exp, data=rate, scale=decay[:, column])
        added = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=added, data1=drive, data2=_load_shared(b, where, state, n, width), op=nl.multiply)
        value = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(dst=value, data0=kept, data1=added, initial=last[:, column], op0=nl.multiply, op1=nl.add)
        nisa.tensor_copy(dst=last[:, column], src=value[:, width - 1 : width], engine=nisa.engine.vector)
        product = total if state == 0 else nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=product, data1=value, data2=_load_shared(c, where, state, n, width), op=nl.multiply)
        if state:
            nisa.tensor_tensor(dst=total, data1=total, data2=product, op=nl.add)
    return total


def _load(source: Any) -> Any:
    tile = nl.ndarray(source.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def _load_shared(source: Any, where: tuple[int, int], state: int, partitions: int, width: int) -> Any:
    """A state's row of B or C, the same in every partition."""
    _, states, steps = source.shape
    tile = nl.ndarray((partitions, width), dtype=nl.float32, buffer=nl.sbuf)
    offset = (where[0] * states + state) * steps + where[1]
    nisa.dma_copy(dst=tile, src=source.ap(pattern=[[0, partitions], [1, width]], offset=offset))
    return tile
