"""Kernels with the loop structure of those that AWS and others published times for; our own code. Only their cost is looked at here.

What is known of a structure comes from the documents that print the time: which loads are hoisted, how blocks are cut, which engine does
what.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
BANK = 512


def _store(out: Any, product: Any, row: int, column: int) -> None:
    rows, columns = product.shape
    result = nl.ndarray((rows, columns), dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=product)
    nisa.dma_copy(dst=out[row : row + rows, column : column + columns], src=result)


def _load(source: Any, row: int, rows: int, column: int, columns: int, dtype: Any = None) -> Any:
    tile = nl.ndarray((rows, columns), dtype=source.dtype if dtype is None else dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[row : row + rows, column : column + columns])
    return tile


@nki.jit
def matmul_tiled(lhs_t: Any, rhs: Any) -> Any:
    """Loads both tiles for every matmul."""
    depth, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for i in range(0, m, P):
        for j in range(0, n, BANK):
            product = nl.ndarray((P, BANK), dtype=nl.float32, buffer=nl.psum)
            for k in range(0, depth, P):
                nisa.nc_matmul(dst=product, stationary=_load(lhs_t, k, P, i, P), moving=_load(rhs, k, P, j, BANK))
            _store(out, product, i, j)
    return out


@nki.jit
def matmul_hoisted(lhs_t: Any, rhs: Any) -> Any:
    """The left operand's tiles stay for a row of results."""
    depth, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for i in range(0, m, P):
        left = [_load(lhs_t, k, P, i, P) for k in range(0, depth, P)]
        for j in range(0, n, BANK):
            product = nl.ndarray((P, BANK), dtype=nl.float32, buffer=nl.psum)
            for k, tile in enumerate(left):
                nisa.nc_matmul(dst=product, stationary=tile, moving=_load(rhs, k * P, P, j, BANK))
            _store(out, product, i, j)
    return out


@nki.jit
def matmul_blocked_free(lhs_t: Any, rhs: Any) -> Any:
    """Blocks of 2 x 2 tiles share their loads."""
    depth, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for i in range(0, m, 2 * P):
        left = [_load(lhs_t, k, P, i, 2 * P) for k in range(0, depth, P)]
        for j in range(0, n, 2 * BANK):
            right = [_load(rhs, k, P, j, 2 * BANK) for k in range(0, depth, P)]
            for bi in range(2):
                for bj in range(2):
                    product = nl.ndarray((P, BANK), dtype=nl.float32, buffer=nl.psum)
                    for a, b in zip(left, right, strict=True):
                        nisa.nc_matmul(dst=product, stationary=a[:, bi * P : (bi + 1) * P], moving=b[:, bj * BANK : (bj + 1) * BANK])
                    _store(out, product, i + bi * P, j + bj * BANK)
    return out


@nki.jit
def matmul_blocked_all(lhs_t: Any, rhs: Any, block_m: int = 16, block_n: int = 2, block_k: int = 8) -> Any:
    """All three dimensions blocked; partial results are summed in SBUF over the blocks of the contraction."""
    depth, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    tall, wide, deep = block_m * P, block_n * BANK, block_k * P
    for j in range(0, n, wide):
        sums: dict[tuple[int, int], Any] = {}
        for k0 in range(0, depth, deep):
            right = [_load(rhs, k, P, j, wide) for k in range(k0, k0 + deep, P)]
            for i in range(0, m, tall):
                left = [_load(lhs_t, k, P, i, tall) for k in range(k0, k0 + deep, P)]
                for bi in range(i, i + tall, P):
                    for bj in range(0, wide, BANK):
                        product = nl.ndarray((P, BANK), dtype=nl.float32, buffer=nl.psum)
                        for a, b in zip(left, right, strict=True):
                            nisa.nc_matmul(dst=product, stationary=a[:, bi - i : bi - i + P], moving=b[:, bj : bj + BANK])
                        if (bi, bj) not in sums:
                            sums[bi, bj] = nl.ndarray((P, BANK), dtype=lhs_t.dtype, buffer=nl.sbuf)
                            nisa.tensor_copy(dst=sums[bi, bj], src=product)
                        else:
                            nisa.tensor_tensor(dst=sums[bi, bj], data1=sums[bi, bj], data2=product, op=nl.add)
        for (bi, bj), total in sums.items():
            nisa.dma_copy(dst=out[bi : bi + P, j + bj : j + bj + BANK], src=total)
    return out


@nki.jit
def mamba_v1(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
    """States outside, channel tiles inside; nothing is kept between states but the sums: delta and u are loaded and multiplied each time.

    delta, u: ``[channels, steps]``; a: ``[channels, states]``; b, c: ``[states, steps]``.
    """
    channels, steps = delta.shape
    states = a.shape[1]
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    sums = [nl.ndarray((P, steps), dtype=nl.float32, buffer=nl.sbuf) for _ in range(0, channels, P)]
    ones = nl.ndarray((1, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    for total in sums:
        nisa.memset(dst=total, value=0.0)
    for state in range(states):
        for i, total in enumerate(sums):
            rate, drive = _load(delta, i * P, P, 0, steps), _load(u, i * P, P, 0, steps)
            decay = _load(a, i * P, P, state, 1)
            kept = nl.ndarray((P, steps), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=kept, op=nl.exp, data=rate, scale=decay)
            step = nl.ndarray((P, steps), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=step, data1=rate, data2=drive, op=nl.multiply)
            nisa.tensor_tensor(dst=step, data1=step, data2=_shared_row(b, state, ones), op=nl.multiply)
            value = nl.ndarray((P, steps), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor_scan(dst=value, data0=kept, data1=step, initial=0.0, op0=nl.multiply, op1=nl.add)
            nisa.tensor_tensor(dst=value, data1=value, data2=_shared_row(c, state, ones), op=nl.multiply)
            nisa.tensor_tensor(dst=total, data1=total, data2=value, op=nl.add)
    for i, total in enumerate(sums):
        nisa.dma_copy(dst=out[i * P : (i + 1) * P, :], src=total)
    return out


def _shared_row(source: Any, row: int, ones: Any) -> Any:
    """A row in every partition of SBUF: multiplied by ones on the Tensor Engine, copied out by the Scalar Engine."""
    steps = source.shape[1]
    loaded = _load(source, row, 1, 0, steps)
    product = nl.ndarray((P, steps), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=ones, moving=loaded)
    tile = nl.ndarray((P, steps), dtype=source.dtype, buffer=nl.sbuf)
    nisa.activation(dst=tile, op=nl.copy, data=product)
    return tile


@nki.jit
def attention_fused(q_t: Any, k_t: Any, v: Any, sums_on_scalar: bool = False) -> Any:
    """Self-attention of one head with the whole row of scores in SBUF, as the Stable Diffusion samples do it.

    Scores are copied out of PSUM, then reduced, exponentiated, transposed tile by tile and multiplied by the values; matmuls are in bf16
    whatever the inputs. ``sums_on_scalar``: the exponentials' sums come from the Scalar Engine with the exponentials (the allocated
    sample), else from a reduction of their own on the Vector Engine.

    q_t, k_t: ``[D, tokens]``; v: ``[tokens, D]``.
    """
    dim, tokens = q_t.shape
    out = nl.ndarray((tokens, dim), dtype=v.dtype, buffer=nl.shared_hbm)
    kind = nl.bfloat16 if str(v.dtype) == "float32" else v.dtype
    queries, keys = _load(q_t, 0, dim, 0, tokens, kind), _load(k_t, 0, dim, 0, tokens, kind)
    values = [_load(v, row, P, 0, dim, kind) for row in range(0, tokens, P)]
    for q0 in range(0, tokens, P):
        scores = nl.ndarray((P, tokens), dtype=nl.float32, buffer=nl.sbuf)
        maxima = nl.ndarray((P, tokens // BANK), dtype=nl.float32, buffer=nl.sbuf)
        for j in range(0, tokens, BANK):
            product = nl.ndarray((P, BANK), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=product, stationary=queries[:, q0 : q0 + P], moving=keys[:, j : j + BANK])
            nisa.tensor_copy(dst=scores[:, j : j + BANK], src=product, engine=nisa.engine.vector)
            nisa.tensor_reduce(dst=maxima[:, j // BANK : j // BANK + 1], op=nl.maximum, data=scores[:, j : j + BANK], axis=1)
        shift = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=shift, op=nl.maximum, data=maxima, axis=1, negate=True)
        weights = nl.ndarray((P, tokens), dtype=kind, buffer=nl.sbuf)
        total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        if sums_on_scalar:
            nisa.activation_reduce(dst=weights, op=nl.exp, data=scores, reduce_op=nl.add, reduce_res=total, bias=shift)
        else:
            nisa.activation(dst=weights, op=nl.exp, data=scores, bias=shift)
            nisa.tensor_reduce(dst=total, op=nl.add, data=weights, axis=1)
        nisa.reciprocal(dst=total, data=total)
        result = nl.ndarray((P, dim), dtype=nl.float32, buffer=nl.psum)
        for j, rows in enumerate(values):
            turned = nl.ndarray((P, P), dtype=kind, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=weights[:, j * P : (j + 1) * P], engine=nisa.engine.tensor)
            moved = nl.ndarray((P, P), dtype=kind, buffer=nl.sbuf)
            nisa.tensor_copy(dst=moved, src=turned, engine=nisa.engine.vector)
            nisa.nc_matmul(dst=result, stationary=moved, moving=rows)
        scaled = nl.ndarray((P, dim), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scaled, data=result, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[q0 : q0 + P, :], src=scaled)
    return out


@nki.jit
def one_dma(source: Any) -> Any:
    """One load; its rows go to partitions."""
    out = nl.ndarray((1, 1), dtype=source.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    nisa.dma_copy(dst=out, src=tile[0:1, 0:1])
    return out


@nki.jit
def dependent_activations(source: Any, length: int = 8) -> Any:
    """A chain of activations of one element per partition, each on the result of the one before."""
    out = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    for _ in range(length):
        nisa.activation(dst=tile, op=nl.copy, data=tile)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def transpose_all(source: Any, block: int = 1024) -> Any:
    """A square matrix turned tile by tile on the Tensor Engine; a result's rows leave SBUF ``block`` elements at a time."""
    rows, columns = source.shape
    out = nl.ndarray((columns, rows), dtype=source.dtype, buffer=nl.shared_hbm)
    for i in range(0, rows, block):
        tiles = [_load(source, k, P, 0, columns) for k in range(i, i + block, P)]
        for j in range(0, columns, P):
            result = nl.ndarray((P, block), dtype=source.dtype, buffer=nl.sbuf)
            for k, tile in enumerate(tiles):
                turned = nl.ndarray((P, P), dtype=source.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=turned, data=tile[:, j : j + P], engine=nisa.engine.tensor)
                nisa.tensor_copy(dst=result[:, k * P : (k + 1) * P], src=turned)
            nisa.dma_copy(dst=out[j : j + P, i : i + block], src=result)
    return out
