"""Matrix products: bf16, fp16 and fp32 through 128 x 512 tiles, fp8 in the Tensor Engine's double-row mode."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import BANK, P, count, evacuate, itemsize, load_contraction, spans, widest

_LEFT_BYTES = 96 * 1024  # of a partition, for the left operand's block
_RESULT_BYTES = 12 * 1024  # and for results on their way out


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
    column_bytes = itemsize(lhs_t) * steps
    turn = 0
    for m0, rows in spans(m, widest(1024, _LEFT_BYTES, column_bytes)):
        left = load_contraction(lhs_t, m0, rows)
        for n0, columns in spans(n, _right_columns(n, rows, column_bytes)):
            right = load_contraction(rhs, n0, columns)
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


def _right_columns(columns: int, left_columns: int, column_bytes: int) -> int:
    """All columns of the right operand where they fit beside the left block; else blocks of which one is at work and one on its way."""
    budget = nl.tile_size.sbuf_fmax_bytes - _RESULT_BYTES - left_columns * column_bytes
    return columns if columns <= 2048 and columns * column_bytes <= budget else widest(2048, budget // 2, column_bytes)


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
    steps = contraction // P
    for m0, rows in spans(m, widest(1024, _LEFT_BYTES, steps)):
        left = _pairs(load_contraction(lhs_t, m0, rows), kind)
        for n0, columns in spans(n, _right_columns(n, rows, steps)):
            right = _pairs(load_contraction(rhs, n0, columns), kind)
            for i0, tile_rows in spans(rows, P):
                result = nl.ndarray((tile_rows, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
                for j0, width in spans(columns, BANK):
                    product = nl.ndarray((tile_rows, width), dtype=nl.float32, buffer=nl.psum)
                    for k in range(steps // 2):
                        nisa.nc_matmul(
                            dst=product,
                            stationary=left[:, k, :, i0 : i0 + tile_rows],
                            moving=right[:, k, :, j0 : j0 + width],
                            perf_mode=nisa.matmul_perf_mode.double_row,
                        )
                    nisa.activation(dst=result[:, j0 : j0 + width], op=nl.copy, data=product, scale=scale)
                nisa.dma_copy(dst=out[m0 + i0 : m0 + i0 + tile_rows, n0 : n0 + columns], src=result)
    return out


def _pairs(block: Any, dtype: Any) -> Any:
    """``[128, K / 256, 2, columns]``: two steps of the contraction for the double-row mode."""
    partitions, steps, columns = block.shape
    typed = block if str(block.dtype) == str(dtype) else block.view(dtype)
    return typed.reshape((partitions, steps // 2, 2, columns))
