"""What the kernels share: tile bounds, loads that broadcast, evacuation of PSUM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki.isa as nisa
import nki.language as nl

P = 128  # partitions
BANK = 512  # fp32 values of a PSUM bank in a partition: the widest moving operand


def spans(size: int, tile: int) -> Iterator[tuple[int, int]]:
    """``(start, length)`` of the tiles that cover ``size``; the last may be shorter."""
    for start in range(0, size, tile):
        yield start, min(tile, size - start)


def count(size: int, tile: int) -> int:
    return (size + tile - 1) // tile


def evacuate(dst: Any, src: Any, turn: int) -> None:
    """Copies PSUM to SBUF, every third time on the Scalar Engine, which is slower to be free but usually idle."""
    if turn % 3 == 2:
        nisa.activation(dst=dst, op=nl.copy, data=src)
    else:
        nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)


def load_row(vector: Any, partitions: int) -> Any:
    """An HBM vector of ``n`` elements as ``[partitions, n]`` in SBUF: the same row in every partition."""
    n = vector.shape[-1]
    tile = nl.ndarray((partitions, n), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=vector.ap(pattern=[[0, partitions], [1, n]], offset=0))
    return tile


def load_transposed(source: Any, row: int, rows: int, columns: int) -> Any:
    """Rows ``row`` to ``row + rows`` of an HBM matrix as ``[columns, rows]`` in SBUF, transposed by the Tensor Engine.

    ``columns`` is at most 128: they become partitions.
    """
    out = nl.ndarray((columns, rows), dtype=source.dtype, buffer=nl.sbuf)
    for start, length in spans(rows, P):
        tile = nl.ndarray((length, columns), dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=source[row + start : row + start + length, 0:columns])
        transpose(out[:, start : start + length], tile)
    return out


def transpose(dst: Any, src: Any) -> None:
    """``dst = src.T`` for tiles of at most 128 x 128 in SBUF, through PSUM."""
    turned = nl.ndarray((src.shape[1], src.shape[0]), dtype=src.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=src, engine=nisa.engine.tensor)
    nisa.tensor_copy(dst=dst, src=turned, engine=nisa.engine.vector)
