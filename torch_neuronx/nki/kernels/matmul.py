"""Matrix products: bf16, fp16 and fp32 through 128 x 512 tiles, fp8 in the Tensor Engine's double-row mode."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import BANK, P, count, evacuate, spans

# Bytes of a partition. The left block stays while right blocks pass by, two at a time: one at work, one on its way.
_LEFT_BYTES, _RIGHT_BYTES = 96 * 1024, 48 * 1024
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@nki.jit
def matmul(lhs_t: Any, rhs: Any) -> Any:
    """``lhs_t.T @ rhs``.

    Args:
        lhs_t: ``[K, M]``, the left operand with its contraction first, as the Tensor Engine takes it; float32, float16 or bfloat16.
        rhs: ``[K, N]`` of the same dtype.

    Returns:
        ``[M, N]`` of the inputs' dtype, summed in float32.
    """
    contraction, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    steps = count(contraction, P)
    column_bytes = _BYTES[str(lhs_t.dtype)] * steps
    turn = 0
    for m0, rows in spans(m, _block(1024, _LEFT_BYTES, column_bytes)):
        left = _load_block(lhs_t, m0, rows)
        for n0, columns in spans(n, _block(2048, _RIGHT_BYTES, column_bytes)):
            right = _load_block(rhs, n0, columns)
            for i0, tile_rows in spans(rows, P):
                result = nl.ndarray((tile_rows, columns), dtype=out.dtype, buffer=nl.sbuf)
                for j0, width in spans(columns, BANK):
                    product = nl.ndarray((tile_rows, width), dtype=nl.float32, buffer=nl.psum)
                    for k in range(steps):
                        depth = min(P, contraction - k * P)
                        stationary = left[0:depth, k, i0 : i0 + tile_rows]
                        nisa.nc_matmul(dst=product, stationary=stationary, moving=right[0:depth, k, j0 : j0 + width])
                    evacuate(result[:, j0 : j0 + width], product, turn)
                    turn += 1
                nisa.dma_copy(dst=out[m0 + i0 : m0 + i0 + tile_rows, n0 : n0 + columns], src=result)
    return out


def _block(widest: int, budget: int, column_bytes: int) -> int:
    """Columns of a resident block: long rows make good use of the DMA engines, but all of the contraction must fit."""
    return max(P, min(widest, budget // column_bytes // P * P))


def _load_block(source: Any, column: int, columns: int) -> Any:
    """Columns of an HBM matrix with rows folded onto partitions: ``[128, rows / 128, columns]``."""
    rows = source.shape[0]
    block = nl.ndarray((min(P, rows), count(rows, P), columns), dtype=source.dtype, buffer=nl.sbuf)
    for k, (start, depth) in enumerate(spans(rows, P)):
        nisa.dma_copy(dst=block[0:depth, k, :], src=source[start : start + depth, column : column + columns])
    return block


@nki.jit
def matmul_fp8(lhs_t: Any, rhs: Any, scale: float = 1.0, dtype: Any = None) -> Any:
    """``scale * (lhs_t.T @ rhs)`` of fp8 operands; two rows of the contraction per cycle (trn2 and newer).

    Args:
        lhs_t: ``[K, M]``, K a multiple of 256.
        rhs: ``[K, N]``.
        scale: product of the operands' scales.
        dtype: how to read the operands' bytes when they come as uint8 (PyTorch has no type for trn2's e4m3, whose largest value is 240).

    Returns:
        ``[M, N]``, bfloat16, summed in float32.

    Raises:
        AssertionError: K is not a multiple of 256.
    """
    contraction, m = lhs_t.shape
    n = rhs.shape[1]
    assert contraction % (2 * P) == 0, f"matmul_fp8: K must be a multiple of {2 * P}, got {contraction}; pad both operands with zeros"
    kind = lhs_t.dtype if dtype is None else dtype
    out = nl.ndarray((m, n), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    for m0, rows in spans(m, 4 * P):
        left = _load_pairs(lhs_t, m0, rows, kind)
        for n0, columns in spans(n, BANK):
            right = _load_pairs(rhs, n0, columns, kind)
            for i0, tile_rows in spans(rows, P):
                product = nl.ndarray((tile_rows, columns), dtype=nl.float32, buffer=nl.psum)
                for k in range(contraction // (2 * P)):
                    nisa.nc_matmul(
                        dst=product,
                        stationary=left[:, k, :, i0 : i0 + tile_rows],
                        moving=right[:, k, :, :],
                        perf_mode=nisa.matmul_perf_mode.double_row,
                    )
                result = nl.ndarray((tile_rows, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
                nisa.activation(dst=result, op=nl.copy, data=product, scale=scale)
                nisa.dma_copy(dst=out[m0 + i0 : m0 + i0 + tile_rows, n0 : n0 + columns], src=result)
    return out


def _load_pairs(source: Any, column: int, columns: int, dtype: Any) -> Any:
    """``[128, K / 256, 2, columns]``: which rows make a pair is free as long as both operands agree."""
    steps = source.shape[0] // (2 * P)
    block = nl.ndarray((P, steps, 2, columns), dtype=source.dtype, buffer=nl.sbuf)
    for k in range(steps):
        for row in range(2):
            start = (2 * k + row) * P
            nisa.dma_copy(dst=block[:, k, row, :], src=source[start : start + P, column : column + columns])
    return block if str(source.dtype) == str(dtype) else block.view(dtype)
