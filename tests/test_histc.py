"""torch.histc of integers, which CUDA has and the CPU lacks; of floats it is the CPU's."""

from __future__ import annotations

import pytest
import torch

DEVICE = "neuron"
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("bins", "low", "high"), [(8, 0, 7), (100, 0, 100), (3, 0, 0), (7, 20, 90)])
def test_integers(dtype: torch.dtype, bins: int, low: int, high: int) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 101, (300,), dtype=dtype)
    actual = torch.histc(x.to(DEVICE), bins, low, high)
    begin, end = (low, high) if low != high else (int(x.min()), int(x.max()))
    expected = [0] * bins
    for value in x.tolist():
        if begin <= value <= end:
            expected[min((value - begin) * bins // (end - begin), bins - 1)] += 1
    assert actual.dtype == dtype and actual.device.type == DEVICE
    # Counts above the dtype's range wrap, as sums do.
    assert actual.tolist() == torch.tensor(expected).to(dtype).tolist()


def test_out_constant_and_empty() -> None:
    out = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert torch.histc(torch.full((5,), 3, device=DEVICE), 4, out=out) is out
    assert out.tolist() == [0, 0, 5, 0]
    assert torch.histc(torch.empty(0, dtype=torch.int32, device=DEVICE), 3).tolist() == [0, 0, 0]


def test_floats_equal_cpu() -> None:
    torch.manual_seed(0)
    x = torch.randn(500)
    assert torch.equal(torch.histc(x.to(DEVICE), 10, -2, 2).cpu(), torch.histc(x, 10, -2, 2))
    out = torch.empty(10, device=DEVICE)
    torch.histc(x.to(DEVICE), 10, out=out)
    assert torch.equal(out.cpu(), torch.histc(x, 10))


def test_refused() -> None:
    x = torch.arange(5, device=DEVICE)
    with pytest.raises(RuntimeError, match="bins must be > 0"):
        torch.histc(x, 0)
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(x, 3, 5, 1)
    with pytest.raises(RuntimeError, match="out must have the input's dtype"):
        torch.histc(x, 3, out=torch.empty(3, device=DEVICE))
