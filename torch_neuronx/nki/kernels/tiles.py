"""What the kernels share: tile bounds, loads that broadcast, evacuation of PSUM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki.isa as nisa
import nki.language as nl

P = 128  # partitions
_RUN_BYTES = 4096  # a DMA's rows should be this long; a longer one only makes the first matmul wait
BANK = 512  # fp32 values of a PSUM bank in a partition: the widest moving operand


def spans(size: int, tile: int) -> Iterator[tuple[int, int]]:
    """``(start, length)`` of the tiles that cover ``size``; the last may be shorter."""
    for start in range(0, size, tile):
        yield start, min(tile, size - start)


def count(size: int, tile: int) -> int:
    return (size + tile - 1) // tile


def load_contraction(source: Any, column: int, columns: int) -> Any:
    """Columns of an HBM matrix ``[K, N]`` with the contraction K on partitions: ``[128, K / 128, columns]``, a step of a matmul per index.

    Which row of K goes to which step and partition is free, as long as both operands agree. If 128 divides K, a partition takes
    neighbouring rows, so that a block of all columns is one long run for the DMA engines; otherwise a step takes neighbouring rows and
    the last one is short.
    """
    rows = source.shape[0]
    if rows % P:
        return load_steps(source, column, columns)
    steps = rows // P
    block = nl.ndarray((P, steps, columns), dtype=source.dtype, buffer=nl.sbuf)
    folded = source.reshape((P, steps, source.shape[1]))
    row_bytes = itemsize(source) * columns
    at_once = max(1, min(steps, _RUN_BYTES // row_bytes)) if columns == source.shape[1] else min(steps, 4)
    for step, together in spans(steps, at_once):
        part = slice(step, step + together)
        nisa.dma_copy(dst=block[:, part, :], src=folded[:, part, column : column + columns])
    return block


def load_steps(source: Any, column: int, columns: int) -> Any:
    """As :func:`load_contraction`, but a step is 128 neighbouring rows: for operands whose partner was made on chip in that order."""
    rows = source.shape[0]
    block = nl.ndarray((min(P, rows), count(rows, P), columns), dtype=source.dtype, buffer=nl.sbuf)
    for step, (start, depth) in enumerate(spans(rows, P)):
        nisa.dma_copy(dst=block[0:depth, step, :], src=source[start : start + depth, column : column + columns])
    return block


def widest(limit: int, budget: int, column_bytes: int) -> int:
    """Columns of a resident block: long rows make good use of the DMA engines, but ``budget`` bytes of a partition must hold them."""
    return max(P, min(limit, budget // column_bytes // P * P))


def itemsize(tensor: Any) -> int:
    return {"float32": 4, "float16": 2, "bfloat16": 2}.get(str(tensor.dtype), 1)


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
    tiles = rows // P
    if tiles > 1 and rows % P == 0:
        # A partition takes neighbouring rows, one long run for the DMA engines, and a tile every `tiles`-th row.
        loaded = nl.ndarray((P, tiles, columns), dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=loaded, src=source[row : row + rows, 0:columns].reshape((P, tiles, columns)))
        for i in range(tiles):
            transpose(out[:, i:rows:tiles], loaded[:, i, :])
        return out
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
