"""Copies between host and device, between devices, and what they do to the order of work."""

from __future__ import annotations

import itertools

import pytest
import torch

DEVICE = "neuron"


def sources(dtype: torch.dtype) -> list[torch.Tensor]:
    base = torch.arange(24).reshape(2, 3, 4).to(dtype)
    return [base, base.transpose(0, 2), base[:, 1:], base[..., ::2], base[:, :1].expand(2, 3, 4), base.flatten()[3], base[:0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_round_trip(dtype: torch.dtype) -> None:
    for x in sources(torch.float32 if dtype == torch.float8_e4m3fn else dtype):
        x = x.to(dtype)
        back = x.to(DEVICE).cpu()
        assert back.dtype == dtype and back.shape == x.shape
        assert torch.equal(back.view(torch.uint8) if dtype.itemsize == 1 else back, x.view(torch.uint8) if dtype.itemsize == 1 else x)


@pytest.mark.parametrize("to_device", [True, False])
def test_copy_converts_broadcasts_and_follows_strides(to_device: bool) -> None:
    for x, dtype in itertools.product(sources(torch.float32), (torch.float32, torch.float64, torch.int32)):
        if x.numel() == 0 or x.dim() == 0:
            continue
        target = torch.zeros(5, *reversed(x.shape), dtype=dtype).permute(0, 3, 2, 1)
        expected = target.clone().copy_(x)
        actual = target.to(DEVICE).copy_(x).cpu() if to_device else target.clone().copy_(x.to(DEVICE))
        assert torch.equal(actual, expected)


def test_source_may_change_after_the_call() -> None:
    for n in (10, 1 << 20):
        host = torch.ones(n)
        x = torch.empty(n, device=DEVICE)
        x.copy_(host, non_blocking=True)
        host.zero_()
        assert x.sum().item() == n


def test_pinned_and_non_blocking() -> None:
    host = torch.arange(1 << 18, dtype=torch.float32).pin_memory()
    assert host.is_pinned()
    x = host.to(DEVICE, non_blocking=True)
    back = torch.empty(1 << 18, pin_memory=True)
    back.copy_(x * 2, non_blocking=True)
    torch.neuron.synchronize()
    assert torch.equal(back, host * 2)


def test_between_devices() -> None:
    x = torch.arange(12.0, device="neuron:0").reshape(3, 4)
    y = x.t().to("neuron:2", torch.int32)
    assert y.device == torch.device("neuron:2")
    assert torch.equal(y.cpu(), torch.arange(12).reshape(3, 4).t().to(torch.int32))
    x.add_(1)  # after the copy in program order
    assert y.cpu()[0, 0] == 0


def test_to_is_a_no_op_for_the_same_device_and_dtype() -> None:
    x = torch.ones(3, device=DEVICE)
    assert x.to(DEVICE) is x and x.to("neuron:0") is x
    assert x.to(DEVICE, copy=True) is not x


def test_shape_mismatch() -> None:
    with pytest.raises(RuntimeError, match="expanded size"):
        torch.ones(3, device=DEVICE).copy_(torch.ones(4))


def test_channels_last_survives() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert x.to(DEVICE).is_contiguous(memory_format=torch.channels_last)
    assert x.to(DEVICE).cpu().is_contiguous(memory_format=torch.channels_last)


def test_item_of_each_dtype() -> None:
    for dtype, value in ((torch.float64, 0.1), (torch.int64, 2**62), (torch.bool, True), (torch.complex128, 1 + 2j), (torch.uint8, 255)):
        assert torch.tensor([value], dtype=dtype).to(DEVICE).item() == value


def test_large_constants_reach_the_device() -> None:
    assert torch.tensor(2**60 + 1, device=DEVICE).item() == 2**60 + 1
    assert torch.tensor([1, 2, 3], device=DEVICE).tolist() == [1, 2, 3]
