"""Flash attention, backward: the probabilities are computed again from the forward pass's row sums.

For a block of 512 keys and a tile of 128 queries, with P the probabilities and dS their scores' gradient::

    dV += P^T dO        dP = dO V^T        dS = P * (dP - rowsum(dO * O))        dK += dS^T Q        dQ += dS K

P and dS have queries on partitions, which is the contraction of dV and dK: no transpose is needed there. Only dQ needs dS transposed.
dV and dK of a block are summed over the queries in PSUM; dQ in SBUF.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.flash_attention import _apply_mask, _scores, causal_mask, load_rows
from torch_neuronx.nki.kernels.tiles import BANK, P, count, evacuate, load_transposed, spans


class Head(NamedTuple):
    """A head's operands in SBUF: ``*_t`` are ``[D, tokens]``, the others ``[128, tokens / 128, D]``."""

    q: Any
    q_t: Any
    d_out: Any
    d_out_t: Any
    shift: Any  # [128, tiles] float32: minus the logarithm of each row's sum
    delta: Any  # [128, tiles] float32: rowsum(dO * O)
    d_q: Any  # [128, tiles, D] float32


@nki.jit
def flash_attention_backward(q: Any, k: Any, v: Any, out: Any, d_out: Any, lse: Any, scale: float = 1.0, causal: bool = False) -> Any:
    """Gradients of :func:`flash_attention`.

    Args:
        q, out, d_out: ``[heads, queries, D]``.
        k, v: ``[kv_heads, keys, D]``.
        lse: ``[heads, queries, 1]`` float32 of the forward pass.

    Returns:
        ``(dq, dk, dv)`` with the shapes and dtypes of q, k and v.
    """
    heads, queries, dim = q.shape
    kv_heads, keys, _ = k.shape
    group = heads // kv_heads
    d_q = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    d_k = nl.ndarray(k.shape, dtype=k.dtype, buffer=nl.shared_hbm)
    d_v = nl.ndarray(v.shape, dtype=v.dtype, buffer=nl.shared_hbm)
    mask = causal_mask() if causal else None
    for kv_head in range(kv_heads):
        members = [_load_head(q[h], out[h], d_out[h], lse[h]) for h in range(kv_head * group, (kv_head + 1) * group)]
        for k0, width in spans(keys, BANK):
            key_rows = load_rows(k[kv_head, k0 : k0 + width, :])
            keys_t = load_transposed(k[kv_head], k0, width, dim)
            values_t = load_transposed(v[kv_head], k0, width, dim)
            tiles = count(width, P)
            d_keys = nl.ndarray((min(P, width), tiles, dim), dtype=nl.float32, buffer=nl.psum)
            d_values = nl.ndarray((min(P, width), tiles, dim), dtype=nl.float32, buffer=nl.psum)
            covered = 0  # keys of the block that some query saw
            for head in members:
                for tile, (q0, n) in enumerate(spans(queries, P)):
                    visible = min(width, q0 + n - k0) if causal else width
                    if visible <= 0:
                        continue
                    hidden_from = q0 - k0 if causal and k0 + visible > q0 else None
                    _one_tile(
                        head, tile, n, keys_t[:, 0:visible], values_t[:, 0:visible], key_rows, d_keys, d_values, mask, hidden_from, scale
                    )
                    covered = max(covered, visible)
            _store_rows(d_k[kv_head], k0, width, d_keys, covered, scale)
            _store_rows(d_v[kv_head], k0, width, d_values, covered, 1.0)
        for h, head in enumerate(members):
            for tile, (q0, n) in enumerate(spans(queries, P)):
                result = nl.ndarray((n, dim), dtype=q.dtype, buffer=nl.sbuf)
                nisa.activation(dst=result, op=nl.copy, data=head.d_q[0:n, tile, :], scale=scale)
                nisa.dma_copy(dst=d_q[kv_head * group + h, q0 : q0 + n, :], src=result)
    return d_q, d_k, d_v


def _load_head(q: Any, out: Any, d_out: Any, lse: Any) -> Head:
    queries, dim = q.shape
    tiles = count(queries, P)
    q_rows, d_out_rows, out_rows = load_rows(q), load_rows(d_out), load_rows(out)
    shift = nl.ndarray((min(P, queries), tiles), dtype=nl.float32, buffer=nl.sbuf)
    delta = nl.ndarray((min(P, queries), tiles), dtype=nl.float32, buffer=nl.sbuf)
    d_q = nl.ndarray((min(P, queries), tiles, dim), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=d_q, value=0.0)
    for tile, (q0, n) in enumerate(spans(queries, P)):
        row = shift[0:n, tile : tile + 1]
        nisa.dma_copy(dst=row, src=lse[q0 : q0 + n, :])
        nisa.tensor_scalar(dst=row, data=row, op0=nl.multiply, operand0=-1.0)
        product = nl.ndarray((n, dim), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=product, data1=d_out_rows[0:n, tile, :], data2=out_rows[0:n, tile, :], op=nl.multiply)
        nisa.tensor_reduce(dst=delta[0:n, tile : tile + 1], op=nl.add, data=product, axis=1)
    return Head(q_rows, load_transposed(q, 0, queries, dim), d_out_rows, load_transposed(d_out, 0, queries, dim), shift, delta, d_q)


def _one_tile(
    head: Head,
    tile: int,
    n: int,
    keys_t: Any,
    values_t: Any,
    key_rows: Any,
    d_keys: Any,
    d_values: Any,
    mask: Any,
    hidden_from: int | None,
    scale: float,
) -> None:
    """One tile of queries against one block of keys."""
    width = keys_t.shape[1]
    dim = head.q.shape[2]
    q0 = tile * P
    scores = _scores(head.q_t[:, q0 : q0 + n], keys_t)
    if hidden_from is not None:
        _apply_mask(scores, mask, hidden_from)
    probabilities = nl.ndarray((n, width), dtype=head.q.dtype, buffer=nl.sbuf)
    nisa.activation(dst=probabilities, op=nl.exp, data=scores, bias=head.shift[0:n, tile : tile + 1], scale=scale)
    d_probabilities = _scores(head.d_out_t[:, q0 : q0 + n], values_t)
    d_scores = nl.ndarray((n, width), dtype=head.q.dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=d_scores,
        data=d_probabilities,
        op0=nl.subtract,
        operand0=head.delta[0:n, tile : tile + 1],
        op1=nl.multiply,
        operand1=probabilities,
    )
    turned = nl.ndarray((min(P, width), count(width, P), n), dtype=head.q.dtype, buffer=nl.psum)
    weights = nl.ndarray(turned.shape, dtype=head.q.dtype, buffer=nl.sbuf)
    for i, (start, length) in enumerate(spans(width, P)):
        columns = slice(start, start + length)
        nisa.nc_matmul(dst=d_values[0:length, i, :], stationary=probabilities[:, columns], moving=head.d_out[0:n, tile, :])
        nisa.nc_matmul(dst=d_keys[0:length, i, :], stationary=d_scores[:, columns], moving=head.q[0:n, tile, :])
        nisa.nc_transpose(dst=turned[0:length, i, :], data=d_scores[:, columns], engine=nisa.engine.tensor)
        evacuate(weights[0:length, i, :], turned[0:length, i, :], i)
    product = nl.ndarray((n, dim), dtype=nl.float32, buffer=nl.psum)
    for i, (_, length) in enumerate(spans(width, P)):
        nisa.nc_matmul(dst=product, stationary=weights[0:length, i, :], moving=key_rows[0:length, i, :])
    total = head.d_q[0:n, tile, :]
    nisa.tensor_tensor(dst=total, data1=total, data2=product, op=nl.add)


def _store_rows(target: Any, start: int, rows: int, summed: Any, covered: int, scale: float) -> None:
    """Stores ``[128, rows / 128, D]`` from PSUM; zeros from row ``covered`` on."""
    dim = target.shape[1]
    for i, (r0, n) in enumerate(spans(rows, P)):
        result = nl.ndarray((n, dim), dtype=target.dtype, buffer=nl.sbuf)
        written = max(0, min(n, covered - r0))
        if written < n:
            nisa.memset(dst=result, value=0.0)
        if written:
            nisa.activation(dst=result[0:written, :], op=nl.copy, data=summed[0:written, i, :], scale=scale)
        nisa.dma_copy(dst=target[start + r0 : start + r0 + n, :], src=result)
