"""Trainium2's e4m3: every bit pattern, rounding, overflow, and agreement with PyTorch's e4m3fn up to 240."""

from __future__ import annotations

import math

import pytest
import torch

import torch_neuronx
from torch_neuronx.float8 import FLOAT8_E4M3_TRN2_MAX

DEVICES = ["cpu", "neuron"]


def value_of(bits: int) -> float:
    """IEEE 754's rules for 1 sign, 4 exponent (bias 7) and 3 mantissa bits."""
    sign, exponent, mantissa = -1.0 if bits & 0x80 else 1.0, bits >> 3 & 15, bits & 7
    if exponent == 15:
        return math.nan if mantissa else sign * math.inf
    return sign * (math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10))


PATTERNS = torch.arange(256, dtype=torch.uint8)
VALUES = torch.tensor([value_of(bits) for bits in range(256)])


@pytest.mark.parametrize("device", DEVICES)
def test_every_pattern(device: str) -> None:
    decoded = torch_neuronx.from_float8_e4m3_trn2(PATTERNS.to(device))
    torch.testing.assert_close(decoded.cpu(), VALUES, rtol=0, atol=0, equal_nan=True)
    assert VALUES[VALUES.isfinite()].max() == FLOAT8_E4M3_TRN2_MAX
    again = torch_neuronx.to_float8_e4m3_trn2(decoded)
    numbers = ~VALUES.isnan()
    assert torch.equal(again.view(torch.uint8).cpu()[numbers], PATTERNS[numbers])
    assert torch_neuronx.from_float8_e4m3_trn2(again)[~numbers.to(device)].isnan().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounds_to_nearest_even(device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    finite = VALUES[:0x78].double()  # positive numbers in order; neighbours differ in the last bit
    middles = (finite[1:] + finite[:-1]) / 2
    x = torch.cat([middles, torch.rand(500).double() * 250, torch.rand(500).double() / 50]).to(dtype)
    for sign in (1, -1):
        actual = torch_neuronx.from_float8_e4m3_trn2(torch_neuronx.to_float8_e4m3_trn2((sign * x).to(device))).cpu().double() * sign
        distance = (finite[None] - x.double()[:, None]).abs()
        best = distance.min(1).values
        assert torch.equal((actual - x.double()).abs(), best)
        ties = (distance == best[:, None]).sum(1) == 2
        even = torch.tensor([finite.tolist().index(v) % 2 == 0 for v in actual[ties].tolist()])
        assert ties.sum() > 100 and even.all()


@pytest.mark.parametrize("device", DEVICES)
def test_overflow(device: str) -> None:
    x = torch.tensor([240.0, 247.99, 248.0, 448.0, 1e30, math.inf, -1e30, -math.inf, math.nan], device=device)

    def convert(saturate: bool) -> list[float]:
        return torch_neuronx.from_float8_e4m3_trn2(torch_neuronx.to_float8_e4m3_trn2(x, saturate=saturate)).tolist()

    assert convert(True)[:-1] == [240, 240, 240, 240, 240, math.inf, -240, -math.inf]
    assert convert(False)[:-1] == [240, 240, math.inf, math.inf, math.inf, math.inf, -math.inf, -math.inf]
    assert math.isnan(convert(True)[-1]) and math.isnan(convert(False)[-1])


def test_pytorch_reads_the_same_numbers() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 48, device="neuron") * 200
    bits = torch_neuronx.to_float8_e4m3_trn2(x)
    assert bits.dtype == torch.float8_e4m3fn and bits.device.type == "neuron" and bits.shape == x.shape
    assert torch.equal(bits.float(), torch_neuronx.from_float8_e4m3_trn2(bits))
    assert bits.float().abs().max() == 240


def test_wrong_dtypes() -> None:
    with pytest.raises(TypeError, match=r"floating-point tensor, not torch.int32"):
        torch_neuronx.to_float8_e4m3_trn2(torch.ones(2, dtype=torch.int32))
    with pytest.raises(TypeError, match=r"torch.float8_e4m3fn or torch.uint8, not as torch.float32"):
        torch_neuronx.from_float8_e4m3_trn2(torch.ones(2))
