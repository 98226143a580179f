"""Decode attention over a paged key-value cache: one query per sequence, keys and values gathered by block table."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.flash_attention import MASKED
from torch_neuronx.nki.kernels.tiles import BANK, P, transpose


@nki.jit
def paged_attention(q: Any, k_cache: Any, v_cache: Any, block_table: Any, lengths: Any, scale: float = 1.0) -> Any:
    """Attention of the newest token of each sequence.

    Args:
        q: ``[sequences, heads, D]``, D at most 128.
        k_cache, v_cache: ``[blocks, block size, kv_heads, D]``; the block size is a power of two that divides 128.
        block_table: int32 ``[sequences, n]``: entry i holds the tokens from i * block size on. n * block size is a multiple of 128; entries
            past a sequence's end must still name a block (0 will do).
        lengths: int32 ``[sequences, 1]``: tokens of each sequence, the newest included.
        scale: factor of the scores.

    Returns:
        ``[sequences, heads, D]``.

    Raises:
        AssertionError: a size breaks the rules above.
    """
    sequences, heads, dim = q.shape
    blocks, block_size, kv_heads, _ = k_cache.shape
    tokens = block_table.shape[1] * block_size
    assert P % block_size == 0, f"paged_attention: the block size must divide {P}, got {block_size}"
    assert tokens % P == 0, f"paged_attention: blocks per sequence x block size must be a multiple of {P}, got {tokens}"
    assert dim <= P, f"paged_attention: a head may have at most {P} elements, got {dim}"
    group = heads // kv_heads
    keys = k_cache.reshape((blocks * block_size, kv_heads * dim))
    values = v_cache.reshape((blocks * block_size, kv_heads * dim))
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    within = _position_in_block(block_size)
    positions = nl.ndarray((group, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=positions, pattern=[[1, tokens]])
    for s in range(sequences):
        key_rows, value_rows = _gather(keys, values, block_table, s, within, block_size, tokens)
        bias = _hide_after(positions, lengths, s)
        for kv_head in range(kv_heads):
            columns = slice(kv_head * dim, (kv_head + 1) * dim)
            first = kv_head * group
            queries = nl.ndarray((group, dim), dtype=q.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=queries, src=q[s, first : first + group, :])
            result = _attend(queries, [row[:, columns] for row in key_rows], [row[:, columns] for row in value_rows], bias, scale)
            nisa.dma_copy(dst=out[s, first : first + group, :], src=result)
    return out


def _position_in_block(block_size: int) -> Any:
    """``[128, 1]`` int32: partition modulo block size."""
    within = nl.ndarray((P, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=within, pattern=[[1, 1]], channel_multiplier=1)
    nisa.tensor_scalar(dst=within, data=within, op0=nl.bitwise_and, operand0=block_size - 1)
    return within


def _gather(
    keys: Any, values: Any, block_table: Any, sequence: int, within: Any, block_size: int, tokens: int
) -> tuple[list[Any], list[Any]]:
    """A sequence's keys and values, 128 tokens a tile, each token's row found through the table."""
    per_tile = P // block_size
    row = block_table.shape[1] * sequence
    found: tuple[list[Any], list[Any]] = ([], [])
    for tile in range(tokens // P):
        slots = nl.ndarray((P, 1), dtype=nl.int32, buffer=nl.sbuf)
        # Each entry goes to the `block_size` partitions of its tokens.
        nisa.dma_copy(dst=slots, src=block_table.ap(pattern=[[1, per_tile], [0, block_size], [1, 1]], offset=row + tile * per_tile))
        nisa.tensor_scalar(dst=slots, data=slots, op0=nl.multiply, operand0=float(block_size))
        nisa.tensor_tensor(dst=slots, data1=slots, data2=within, op=nl.add)
        for source, tiles in zip((keys, values), found, strict=True):
            width = source.shape[1]
            rows = nl.ndarray((P, width), dtype=source.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=rows, src=source.ap(pattern=[[width, P], [1, width]], offset=0, vector_offset=slots, indirect_dim=0))
            tiles.append(rows)
    return found


def _hide_after(positions: Any, lengths: Any, sequence: int) -> Any:
    """``[group, tokens]``: 0 for the sequence's tokens, a large negative number after them."""
    group, tokens = positions.shape
    length = nl.ndarray((group, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=length, src=lengths.ap(pattern=[[0, group], [1, 1]], offset=sequence))
    limit = nl.ndarray((group, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=limit, src=length, engine=nisa.engine.vector)
    bias = nl.ndarray((group, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=bias, data=positions, op0=nl.greater_equal, operand0=limit, op1=nl.multiply, operand1=MASKED)
    return bias


def _attend(queries: Any, key_tiles: list[Any], value_tiles: list[Any], bias: Any, scale: float) -> Any:
    """``[group, D]``: softmax over all tokens at once; a decode step's scores are few."""
    group, dim = queries.shape
    tokens = bias.shape[1]
    queries_t = nl.ndarray((dim, group), dtype=queries.dtype, buffer=nl.sbuf)
    transpose(queries_t, queries)
    scores = nl.ndarray((group, tokens), dtype=nl.float32, buffer=nl.sbuf)
    for start in range(0, tokens, BANK):
        width = min(BANK, tokens - start)
        keys_t = nl.ndarray((dim, width), dtype=queries.dtype, buffer=nl.sbuf)
        for i in range(width // P):
            transpose(keys_t[:, i * P : (i + 1) * P], key_tiles[start // P + i])
        product = nl.ndarray((group, width), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=queries_t, moving=keys_t)
        nisa.tensor_tensor(dst=scores[:, start : start + width], data1=product, data2=bias[:, start : start + width], op=nl.add)
    shift = nl.ndarray((group, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=shift, op=nl.maximum, data=scores, axis=1, negate=True)
    nisa.tensor_scalar(dst=shift, data=shift, op0=nl.multiply, operand0=scale)
    weights = nl.ndarray((group, tokens), dtype=queries.dtype, buffer=nl.sbuf)
    total = nl.ndarray((group, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation_reduce(dst=weights, op=nl.exp, data=scores, reduce_op=nl.add, reduce_res=total, bias=shift, scale=scale)
    product = nl.ndarray((group, dim), dtype=nl.float32, buffer=nl.psum)
    for i, rows in enumerate(value_tiles):
        weights_t = nl.ndarray((P, group), dtype=queries.dtype, buffer=nl.sbuf)
        transpose(weights_t, weights[:, i * P : (i + 1) * P])
        nisa.nc_matmul(dst=product, stationary=weights_t, moving=rows)
    nisa.reciprocal(dst=total, data=total)
    result = nl.ndarray((group, dim), dtype=queries.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=product, op0=nl.multiply, operand0=total)
    return result
