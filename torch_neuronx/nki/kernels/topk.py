"""The k largest elements of each row, eight at a time."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import P, count, spans

_LEAST = -3.4028235e38


@nki.jit
def topk(x: Any, k: int) -> Any:
    """The largest elements of each row, in descending order.

    Args:
        x: ``[rows, columns]``, 8 to 16384 columns.
        k: how many.

    Returns:
        ``(values, indices)``: ``[rows, k]`` float32 and uint32; of equal elements the first comes first.

    Raises:
        AssertionError: columns or k out of range.
    """
    rows, columns = x.shape
    assert 8 <= columns <= 16384, f"topk: a row must have 8 to 16384 elements, got {columns}"
    assert 1 <= k <= columns, f"topk: k must lie between 1 and {columns}, got {k}"
    values = nl.ndarray((rows, k), dtype=nl.float32, buffer=nl.shared_hbm)
    indices = nl.ndarray((rows, k), dtype=nl.uint32, buffer=nl.shared_hbm)
    rounds = count(k, 8)
    for r0, n in spans(rows, P):
        tile = nl.ndarray((n, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[r0 : r0 + n, :])
        best = nl.ndarray((n, rounds * 8), dtype=nl.float32, buffer=nl.sbuf)
        where = nl.ndarray((n, rounds * 8), dtype=nl.uint32, buffer=nl.sbuf)
        for i in range(rounds):
            eight = slice(8 * i, 8 * i + 8)
            nisa.max8(dst=best[:, eight], src=tile)
            nisa.nc_find_index8(dst=where[:, eight], data=tile, vals=best[:, eight])
            if i + 1 < rounds:
                nisa.nc_match_replace8(dst=tile, data=tile, vals=best[:, eight], imm=_LEAST)
        nisa.dma_copy(dst=values[r0 : r0 + n, :], src=best[:, 0:k])
        nisa.dma_copy(dst=indices[r0 : r0 + n, :], src=where[:, 0:k])
    return values, indices
