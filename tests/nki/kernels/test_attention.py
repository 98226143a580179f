from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F

from tests.nki.kernels.check import close
from torch_neuronx.nki.kernels import flash_attention, flash_attention_backward, paged_attention


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


CASES = [
    (1, 1, 128, 128, 64, False),
    (2, 1, 256, 256, 128, True),
    (2, 2, 200, 330, 32, False),  # neither is a multiple of 128
    (1, 1, 130, 130, 64, True),
    (1, 1, 128, 1200, 64, False),  # more than one block of keys
    (1, 1, 1200, 1200, 16, True),
    (1, 1, 300, 100, 16, True),  # rows past the last key
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "queries", "keys", "dim", "causal"), CASES)
def test_forward_and_backward(heads: int, kv_heads: int, queries: int, keys: int, dim: int, causal: bool, dtype: torch.dtype) -> None:
    q = torch.randn(heads, queries, dim, dtype=dtype)
    k, v = (torch.randn(kv_heads, keys, dim, dtype=dtype) for _ in range(2))
    d_out = torch.randn(heads, queries, dim, dtype=dtype)
    scale = dim**-0.5
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    expected = reference(wide[0], wide[1], wide[2], causal, scale)
    expected.backward(d_out.double())

    out, lse = flash_attention(q, k, v, scale=scale, causal=causal)
    close(out, expected.detach(), factor=2)
    assert lse.shape == (heads, queries, 1) and lse.dtype is torch.float32
    found = flash_attention_backward(q, k, v, out, d_out, lse, scale=scale, causal=causal)
    for gradient, tensor in zip(found, wide, strict=True):
        assert gradient.dtype is dtype and tensor.grad is not None
        close(gradient, tensor.grad, factor=2)


def test_sequence_2048_head_128_takes_seconds(target: str) -> None:
    """Simulated forward and backward with all checks, traced for the first time."""
    q, k, v, d_out = (torch.randn(1, 2048, 128, dtype=torch.bfloat16) for _ in range(4))
    scale = 128**-0.5
    started = time.process_time()
    out, lse = flash_attention(q, k, v, scale=scale, causal=True)
    gradients = flash_attention_backward(q, k, v, out, d_out, lse, scale=scale, causal=True)
    elapsed = time.process_time() - started
    wide = [t.float().requires_grad_() for t in (q, k, v)]
    expected = F.scaled_dot_product_attention(wide[0], wide[1], wide[2], is_causal=True)
    expected.backward(d_out.float())
    close(out, expected.detach())
    for gradient, tensor in zip(gradients, wide, strict=True):
        assert tensor.grad is not None
        close(gradient, tensor.grad)
    assert elapsed < 10  # seconds of CPU time


def test_a_head_of_more_than_128_is_refused() -> None:
    x = torch.zeros(1, 128, 256)
    with pytest.raises(AssertionError, match="at most 128"):
        flash_attention(x, x, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size"), [(4, 1, 64, 16), (4, 4, 32, 32), (8, 2, 128, 128)])
def test_paged_attention(heads: int, kv_heads: int, dim: int, block_size: int, dtype: torch.dtype) -> None:
    sequences, per_sequence = 3, 256 // block_size
    lengths = torch.tensor([[1], [100], [256]], dtype=torch.int32)
    blocks = sequences * per_sequence + 5
    k_cache, v_cache = (torch.randn(blocks, block_size, kv_heads, dim, dtype=dtype) for _ in range(2))
    table = torch.randperm(blocks)[: sequences * per_sequence].view(sequences, per_sequence).to(torch.int32)
    q = torch.randn(sequences, heads, dim, dtype=dtype)
    result = paged_attention(q, k_cache, v_cache, table, lengths, scale=dim**-0.5)
    for s in range(sequences):
        n = int(lengths[s])
        keys, values = (c[table[s].long()].flatten(0, 1)[:n].transpose(0, 1).double() for c in (k_cache, v_cache))
        close(result[s], reference(q[s].double()[:, None], keys, values, False, dim**-0.5)[:, 0], factor=2)


def test_paged_attention_refuses_a_partial_tile() -> None:
    cache = torch.zeros(4, 16, 1, 64)
    with pytest.raises(AssertionError, match="multiple of 128, got 48"):
        paged_attention(torch.zeros(1, 1, 64), cache, cache, torch.zeros(1, 3, dtype=torch.int32), torch.ones(1, 1, dtype=torch.int32))
