from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.nki.kernels.check import close
from torch_neuronx.nki.kernels import layer_norm, rms_norm, rope, softmax

SHAPES = [(128, 256), (200, 1000), (1, 8)]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = 4 * torch.randn(shape, dtype=dtype)
    close(softmax(x), F.softmax(x.float(), -1))


def test_softmax_of_large_logits_does_not_overflow() -> None:
    x = 1e4 * torch.randn(128, 64)
    close(softmax(x), F.softmax(x, -1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(shape[1], dtype=dtype)
    close(rms_norm(x, weight, eps=1e-5), F.rms_norm(x.float(), shape[1:], weight.float(), eps=1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype) + 1
    weight, bias = torch.randn(shape[1], dtype=dtype), torch.randn(shape[1], dtype=dtype)
    close(layer_norm(x, weight, bias), F.layer_norm(x.float(), shape[1:], weight.float(), bias.float()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "dim"), [(128, 4, 64), (150, 2, 128)])
def test_rope(tokens: int, heads: int, dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(tokens, heads, dim, dtype=dtype)
    angle = torch.arange(tokens)[:, None] / 100.0 ** (torch.arange(dim // 2) / (dim // 2))
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    a, b = x.float().chunk(2, -1)
    c, s = cos.float()[:, None], sin.float()[:, None]
    close(rope(x, cos, sin), torch.cat([a * c - b * s, b * c + a * s], -1))
