"""Training steps: equal to the CPU under the same optimizer implementation, and no cache misses in steady state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_neuronx import _C

DEVICE = "neuron"


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        # No bias: that of the keys has a gradient of exactly zero, whose rounding noise Adam would blow up.
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def make_gpt() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = nn.Sequential(nn.Embedding(50, 32), Block(32, 4), Block(32, 4), nn.LayerNorm(32), nn.Linear(32, 50))
    return model, torch.randint(0, 50, (4, 16)), torch.randint(0, 50, (4, 16))


def make_conv() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    # No bias before a norm, for the same reason.
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 64, 10)
    )
    return model, torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))


def losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int, **options: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        values.append(loss.detach())
    return [value.item() for value in values]


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["loop", "foreach", "fused"])
@pytest.mark.parametrize("make", [make_gpt, make_conv])
def test_losses_equal_cpu(make: Any, options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model, x, y = make()
    twin = copy.deepcopy(model).to(DEVICE)
    expected = losses(model, x, y, 6, **options)
    actual = losses(twin, x.to(DEVICE), y.to(DEVICE), 6, **options)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(q.cpu(), p)


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["loop", "foreach", "fused"])
def test_steady_state_never_misses(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model, x, y = make_gpt()
    model, x, y = model.to(DEVICE), x.to(DEVICE), y.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x).reshape(-1, 50), y.reshape(-1)).backward()
        optimizer.step()
        schedule.step()

    def misses() -> dict[str, int]:
        return {name: c["misses"] + c["inline"] for name, c in _C._counters()["ops"].items()}

    for _ in range(3):
        step()
    before, syncs = misses(), _C._counters()["sync_count"]
    for _ in range(10):
        step()
    after = misses()
    assert {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)} == {}
    assert _C._counters()["sync_count"] == syncs
