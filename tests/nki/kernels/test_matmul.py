from __future__ import annotations

import pytest
import torch

from tests.nki.kernels.check import close
from torch_neuronx.nki.kernels import matmul, matmul_fp8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("m", "k", "n"), [(128, 128, 512), (256, 384, 640), (100, 70, 30), (1, 128, 1)])
def test_matmul(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    a, b = torch.randn(k, m, dtype=dtype), torch.randn(k, n, dtype=dtype)
    result = matmul(a, b)
    assert result.dtype is dtype
    close(result, a.double().T @ b.double())


def test_fp8() -> None:
    a = torch.randn(512, 200).to(torch.float8_e5m2)
    b = torch.randn(512, 600).to(torch.float8_e5m2)
    close(matmul_fp8(a, b, scale=0.5), 0.5 * a.double().T @ b.double())


def test_fp8_as_bytes(target: str) -> None:
    """e4m3 of trn2 has no PyTorch dtype; below 240 its values are those of e4m3fn."""
    a = torch.randn(256, 128).to(torch.float8_e4m3fn)
    b = torch.randn(256, 128).to(torch.float8_e4m3fn)
    result = matmul_fp8(a.view(torch.uint8), b.view(torch.uint8), dtype="float8_e4m3")
    close(result, a.double().T @ b.double())


def test_fp8_refuses_an_odd_contraction() -> None:
    a = torch.zeros(128, 128).to(torch.float8_e5m2)
    with pytest.raises(AssertionError, match="multiple of 256, got 128"):
        matmul_fp8(a, a)
