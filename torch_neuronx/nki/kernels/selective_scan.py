"""The selective scan of Mamba: a linear recurrence along the sequence, one partition a channel, in the Vector Engine's scan instruction."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import P, spans

_SHARED_BYTES = 64 * 1024  # of a partition, for the rows of B and C that all channels use


@nki.jit
def selective_scan(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
    """``h[t] = exp(delta[t] A) h[t-1] + delta[t] u[t] B[t]``, ``y[t] = sum over states of h[t] C[t]``.

    The sequence is cut into chunks whose B and C, the same for all channels, are in SBUF once. Where a chunk ends, each recurrence's
    value is kept.

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
    chunk = max(1, min(steps, 2048, _SHARED_BYTES // (8 * states)))
    decays = [_load(a[c0 : c0 + n, :]) for c0, n in spans(channels, P)]
    for i in range(batch):
        last = [nl.ndarray((n, states), dtype=nl.float32, buffer=nl.sbuf) for _, n in spans(channels, P)]
        for tile in last:
            nisa.memset(dst=tile, value=0.0)
        for t0, width in spans(steps, chunk):
            shared_b, shared_c = (_load_shared(x, i, t0, width, min(P, channels)) for x in (b, c))
            for k, (c0, n) in enumerate(spans(channels, P)):
                rate = _load(delta[i, c0 : c0 + n, t0 : t0 + width])
                drive = _load(u[i, c0 : c0 + n, t0 : t0 + width])
                nisa.tensor_tensor(dst=drive, data1=drive, data2=rate, op=nl.multiply)
                total = _one_chunk(rate, drive, decays[k], last[k], shared_b[0:n], shared_c[0:n])
                if str(delta.dtype) == "float32":
                    result = total
                else:
                    result = nl.ndarray((n, width), dtype=delta.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=result, src=total, engine=nisa.engine.vector)
                nisa.dma_copy(dst=out[i, c0 : c0 + n, t0 : t0 + width], src=result)
    return out


def _one_chunk(rate: Any, drive: Any, decay: Any, last: Any, b: Any, c: Any) -> Any:
    """The outputs of a chunk, summed over states; updates ``last``."""
    n, width = rate.shape
    total = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
    for state in range(decay.shape[1]):
        column = slice(state, state + 1)
        kept = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=kept, op=nl.exp, data=rate, scale=decay[:, column])
        added = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=added, data1=drive, data2=b[:, state, :], op=nl.multiply)
        value = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(dst=value, data0=kept, data1=added, initial=last[:, column], op0=nl.multiply, op1=nl.add)
        nisa.activation(dst=last[:, column], op=nl.copy, data=value[:, width - 1 : width])
        product = total if state == 0 else nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=product, data1=value, data2=c[:, state, :], op=nl.multiply)
        if state:
            nisa.tensor_tensor(dst=total, data1=total, data2=product, op=nl.add)
    return total


def _load(source: Any) -> Any:
    tile = nl.ndarray(source.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def _load_shared(source: Any, batch: int, start: int, width: int, partitions: int) -> Any:
    """All states' rows of B or C for a chunk, ``[partitions, states, width]``, the same in every partition."""
    _, states, steps = source.shape
    tile = nl.ndarray((partitions, states, width), dtype=nl.float32, buffer=nl.sbuf)
    offset = batch * states * steps + start
    nisa.dma_copy(dst=tile, src=source.ap(pattern=[[0, partitions], [steps, states], [1, width]], offset=offset))
    return tile
