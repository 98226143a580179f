"""Grouped matmul of a mixture of experts: each block of 128 token copies is multiplied by the weights of its own expert."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import BANK, P, count, evacuate, itemsize, spans, transpose, widest

_WEIGHT_BYTES = 64 * 1024  # of a partition, for a block of an expert's weights


@nki.jit
def moe_grouped_matmul(x: Any, weights: Any, rows: Any, experts: Any) -> Any:
    """``out[i] = x[rows[i]] @ weights[experts[i // 128]]``.

    Which expert a block uses is known only when the kernel runs: its number is loaded into a register, and the weights are read from an
    address made of it. Token copies are sorted by expert and padded to blocks of 128 by the caller (:func:`expert_blocks` does it).

    Args:
        x: ``[tokens, K]``.
        weights: ``[experts, K, N]``.
        rows: int32 ``[blocks * 128, 1]``, a row of x for each row of the result; a padding row may name any row of x.
        experts: int32 ``[blocks, 1]``.

    Returns:
        ``[blocks * 128, N]``.
    """
    depth = x.shape[1]
    columns = weights.shape[2]
    blocks = experts.shape[0]
    out = nl.ndarray((blocks * P, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    turn = 0
    for b in range(blocks):
        expert = nisa.register_alloc()
        nisa.register_load(expert, experts[b])
        tokens_t = _gather_turned(x, rows, b)
        for n0, width in spans(columns, widest(1024, _WEIGHT_BYTES, itemsize(weights) * count(depth, P))):
            block = nl.ndarray((min(P, depth), count(depth, P), width), dtype=weights.dtype, buffer=nl.sbuf)
            for k, (k0, length) in enumerate(spans(depth, P)):
                source = weights.ap(pattern=[[columns, length], [1, width]], offset=k0 * columns + n0, scalar_offset=expert, indirect_dim=0)
                nisa.dma_copy(dst=block[0:length, k, :], src=source)
            result = nl.ndarray((P, width), dtype=x.dtype, buffer=nl.sbuf)
            for j0, bank in spans(width, BANK):
                product = nl.ndarray((P, bank), dtype=nl.float32, buffer=nl.psum)
                for k, (_, length) in enumerate(spans(depth, P)):
                    nisa.nc_matmul(dst=product, stationary=tokens_t[0:length, k, :], moving=block[0:length, k, j0 : j0 + bank])
                evacuate(result[:, j0 : j0 + bank], product, turn)
                turn += 1
            nisa.dma_copy(dst=out[b * P : (b + 1) * P, n0 : n0 + width], src=result)
    return out


def _gather_turned(x: Any, rows: Any, block: int) -> Any:
    """The block's tokens as ``[128, K / 128, 128]``: gathered by row, then transposed."""
    depth = x.shape[1]
    index = nl.ndarray((P, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=rows[block * P : (block + 1) * P, :])
    tile = nl.ndarray((P, depth), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.ap(pattern=[[depth, P], [1, depth]], offset=0, vector_offset=index, indirect_dim=0))
    turned = nl.ndarray((min(P, depth), count(depth, P), P), dtype=x.dtype, buffer=nl.sbuf)
    for k, (k0, length) in enumerate(spans(depth, P)):
        transpose(turned[0:length, k, :], tile[:, k0 : k0 + length])
    return turned


def expert_blocks(assignment: Any, experts: int) -> tuple[Any, Any, Any]:
    """Sorts token copies by expert and pads each expert's to blocks of 128.

    Args:
        assignment: int64 tensor ``[tokens, k]``: the experts of each token.
        experts: how many experts there are.

    Returns:
        ``rows`` and ``experts`` for :func:`moe_grouped_matmul`, and ``place`` int64 ``[tokens, k]``: where each copy's result lies.
    """
    import torch

    flat = assignment.flatten().cpu()
    order = torch.argsort(flat, stable=True)
    sizes = torch.bincount(flat, minlength=experts)
    blocks = (sizes + P - 1) // P
    starts = (torch.cumsum(blocks, 0) - blocks) * P
    firsts = torch.cumsum(sizes, 0) - sizes
    position = starts[flat[order]] + torch.arange(len(flat)) - firsts[flat[order]]
    rows = torch.zeros(int(blocks.sum()) * P, 1, dtype=torch.int32)
    rows[position, 0] = (order // assignment.shape[1]).to(torch.int32)
    place = torch.empty(len(flat), dtype=torch.int64)
    place[order] = position
    which = torch.repeat_interleave(torch.arange(experts, dtype=torch.int32), blocks).unsqueeze(1)
    device = assignment.device
    return rows.to(device), which.to(device), place.view(assignment.shape).to(device)
