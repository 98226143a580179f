"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import P, spans


@nki.jit
def rope(x: Any, cos: Any, sin: Any) -> Any:
    """Rotates the two halves of each head: ``(a, b) -> (a cos - b sin, b cos + a sin)``, the layout of Llama and Hugging Face.

    Args:
        x: ``[tokens, heads, D]``.
        cos, sin: ``[tokens, D / 2]``.

    Returns:
        ``[tokens, heads, D]``.
    """
    tokens, heads, dim = x.shape
    half = dim // 2
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for t0, n in spans(tokens, P):
        tile = nl.ndarray((n, heads, dim), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[t0 : t0 + n])
        c, s = _load_angles(cos, t0, n, heads), _load_angles(sin, t0, n, heads)
        a, b = tile[:, :, 0:half], tile[:, :, half:dim]
        result = nl.ndarray((n, heads, dim), dtype=x.dtype, buffer=nl.sbuf)
        _rotate(result[:, :, 0:half], a, c, b, s, nl.subtract)
        _rotate(result[:, :, half:dim], b, c, a, s, nl.add)
        nisa.dma_copy(dst=out[t0 : t0 + n], src=result)
    return out


def _load_angles(source: Any, start: int, n: int, heads: int) -> Any:
    """``[n, heads, D / 2]``, the heads by a stride of 0."""
    half = source.shape[1]
    tile = nl.ndarray((n, 1, half), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[start : start + n, :])
    return tile.broadcast(1, heads)


def _rotate(dst: Any, x: Any, c: Any, y: Any, s: Any, op: Any) -> None:
    """``dst = op(x * c, y * s)``."""
    first = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    second = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=first, data1=x, data2=c, op=nl.multiply)
    nisa.tensor_tensor(dst=second, data1=y, data2=s, op=nl.multiply, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(dst=dst, data1=first, data2=second, op=op)
