"""Flash attention, forward: softmax(Q K^T) V without ever holding the whole score matrix.

Queries are the partitions. For each tile of 128 queries the keys come in blocks of 1024 (two PSUM banks of scores); the running maximum and
sum of a row are corrected once a block. What the engines do meanwhile: Tensor: scores, transposes of the probabilities, values; Scalar:
exp with its row sums; Vector: maxima, evacuation of the transposes, corrections.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import BANK, P, count, load_transposed, spans, transpose

KEYS = 2 * BANK  # keys of a block
MASKED = -1.0e30


class Running(NamedTuple):
    """What a tile of queries carries from block to block, all float32."""

    output: Any  # [queries, D], not yet divided by `total`
    largest: Any  # [queries, 1], of the unscaled scores
    total: Any  # [queries, 1]


@nki.jit
def flash_attention(q: Any, k: Any, v: Any, scale: float = 1.0, causal: bool = False) -> Any:
    """Attention of each head on its own.

    Args:
        q: ``[heads, queries, D]``, D at most 128 (``heads`` may hold batches too).
        k, v: ``[kv_heads, keys, D]``; ``heads`` is a multiple of ``kv_heads``, and a group of neighbouring heads shares keys and values.
        scale: factor of the scores.
        causal: query i sees keys 0 to i.

    Returns:
        ``(out, lse)``: ``[heads, queries, D]`` of the dtype of q, and ``[heads, queries, 1]`` float32, the logarithm of the sum of each
        row's exponentials, which the backward pass needs.

    Raises:
        AssertionError: D exceeds 128.
    """
    heads, queries, dim = q.shape
    keys = k.shape[1]
    assert dim <= P, f"flash_attention: a head may have at most {P} elements, got {dim}"
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    lse = nl.ndarray((heads, queries, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    mask = causal_mask() if causal else None
    group = heads // k.shape[0]
    for head in range(heads):
        if head % group == 0:
            keys_t = load_transposed(k[head // group], 0, keys, dim)
            values = load_rows(v[head // group])
        queries_t = load_transposed(q[head], 0, queries, dim)
        sums = nl.ndarray((min(P, queries), count(queries, P)), dtype=nl.float32, buffer=nl.sbuf)
        for q0, n in spans(queries, P):
            visible = min(keys, q0 + n) if causal else keys
            state = None
            for k0, width in spans(visible, KEYS):
                block = _scores(queries_t[:, q0 : q0 + n], keys_t[:, k0 : k0 + width])
                if causal and k0 + width > q0:
                    _apply_mask(block, mask, q0 - k0)
                state = _accumulate(state, block, values, k0, dim, scale)
            _finish(state, out[head, q0 : q0 + n, :], sums[0:n, q0 // P : q0 // P + 1], scale)
        _store_sums(lse[head], sums)
    return out, lse


def causal_mask() -> Any:
    """``[128, 128]``: 0 where the key's index is at most the query's, else a large negative number."""
    mask = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=mask, value=0.0)
    # query - key >= 0 keeps the zero
    nisa.affine_select(
        dst=mask, pattern=[[-1, P]], channel_multiplier=1, on_true_tile=mask, on_false_value=MASKED, cmp_op=nl.greater_equal, offset=0
    )
    return mask


def load_rows(source: Any) -> Any:
    """An HBM matrix with its rows on partitions: ``[128, rows / 128, D]``."""
    rows, dim = source.shape
    tile = nl.ndarray((min(P, rows), count(rows, P), dim), dtype=source.dtype, buffer=nl.sbuf)
    for i, (start, n) in enumerate(spans(rows, P)):
        nisa.dma_copy(dst=tile[0:n, i, :], src=source[start : start + n, :])
    return tile


def _scores(queries_t: Any, keys_t: Any) -> Any:
    """``[queries, keys]`` in PSUM; a matmul fills one bank."""
    n, width = queries_t.shape[1], keys_t.shape[1]
    block = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.psum)
    for start, length in spans(width, BANK):
        nisa.nc_matmul(dst=block[:, start : start + length], stationary=queries_t, moving=keys_t[:, start : start + length])
    return block


def _apply_mask(block: Any, mask: Any, diagonal: int) -> None:
    """Hides the keys after each query. ``diagonal``: the column at which the tile's diagonal starts."""
    n, width = block.shape
    length = min(width - diagonal, P)
    corner = block[:, diagonal : diagonal + length]
    nisa.tensor_tensor(dst=corner, data1=corner, data2=mask[0:n, 0:length], op=nl.add)


def _accumulate(state: Running | None, block: Any, values: Any, k0: int, dim: int, scale: float) -> Running:
    n, width = block.shape
    largest = _column(n)
    nisa.tensor_reduce(dst=largest, op=nl.maximum, data=block, axis=1)
    if state is not None:
        nisa.tensor_tensor(dst=largest, data1=largest, data2=state.largest, op=nl.maximum)
    shift = _column(n)
    nisa.tensor_scalar(dst=shift, data=largest, op0=nl.multiply, operand0=-scale)
    probabilities = nl.ndarray((n, width), dtype=values.dtype, buffer=nl.sbuf)
    total = _column(n)
    nisa.activation_reduce(dst=probabilities, op=nl.exp, data=block, reduce_op=nl.add, reduce_res=total, bias=shift, scale=scale)
    product = _times_values(probabilities, values, k0, dim)
    output = nl.ndarray((n, dim), dtype=nl.float32, buffer=nl.sbuf)
    if state is None:
        nisa.tensor_copy(dst=output, src=product, engine=nisa.engine.vector)
        return Running(output, largest, total)
    # Earlier blocks were scaled by an older maximum.
    correction = _column(n)
    nisa.activation(dst=correction, op=nl.exp, data=state.largest, bias=shift, scale=scale)
    nisa.scalar_tensor_tensor(dst=total, data=state.total, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=total)
    nisa.scalar_tensor_tensor(dst=output, data=state.output, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=product)
    return Running(output, largest, total)


def _times_values(probabilities: Any, values: Any, k0: int, dim: int) -> Any:
    """``probabilities @ values`` in PSUM: the probabilities are transposed first, because the contraction must lie on partitions."""
    n, width = probabilities.shape
    turned = nl.ndarray((min(P, width), count(width, P), n), dtype=probabilities.dtype, buffer=nl.psum)
    weights = nl.ndarray(turned.shape, dtype=probabilities.dtype, buffer=nl.sbuf)
    for i, (start, length) in enumerate(spans(width, P)):
        nisa.nc_transpose(dst=turned[0:length, i, :], data=probabilities[:, start : start + length], engine=nisa.engine.tensor)
    full = width // P
    if full:
        nisa.tensor_copy(dst=weights[:, 0:full, :], src=turned[:, 0:full, :], engine=nisa.engine.vector)
    if width % P:
        rest = width % P
        nisa.tensor_copy(dst=weights[0:rest, full, :], src=turned[0:rest, full, :], engine=nisa.engine.vector)
    product = nl.ndarray((n, dim), dtype=nl.float32, buffer=nl.psum)
    for i, (_, length) in enumerate(spans(width, P)):
        nisa.nc_matmul(dst=product, stationary=weights[0:length, i, :], moving=values[0:length, k0 // P + i, :])
    return product


def _finish(state: Running | None, out: Any, lse: Any, scale: float) -> None:
    """Divides by the sum and stores a tile; ``lse`` is ``[queries, 1]`` in SBUF."""
    assert state is not None
    n, dim = state.output.shape
    inverse = _column(n)
    nisa.reciprocal(dst=inverse, data=state.total)
    result = nl.ndarray((n, dim), dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=state.output, op0=nl.multiply, operand0=inverse)
    nisa.dma_copy(dst=out, src=result)
    logarithm = _column(n)
    nisa.activation(dst=logarithm, op=nl.log, data=state.total)
    nisa.scalar_tensor_tensor(dst=lse, data=state.largest, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=logarithm)


def _store_sums(lse: Any, sums: Any) -> None:
    """``[128, tiles]`` to ``[queries, 1]``: turned first, because rows of four bytes keep the DMA engines busy for nothing."""
    queries = lse.shape[0]
    full = queries // P
    for start, tiles in spans(full, P):
        turned = nl.ndarray((tiles, P), dtype=nl.float32, buffer=nl.sbuf)
        transpose(turned, sums[:, start : start + tiles])
        nisa.dma_copy(dst=lse[start * P : (start + tiles) * P, :].reshape((tiles, P)), src=turned)
    if queries % P:
        nisa.dma_copy(dst=lse[full * P : queries, :], src=sums[0 : queries % P, full : full + 1])


def _column(n: int) -> Any:
    return nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
