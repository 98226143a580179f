"""No tensor of the device lies outside the device's segments, whatever made it."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

DEVICE = "neuron"


def segments() -> list[tuple[int, int]]:
    return [(s["address"], s["address"] + s["total_size"]) for s in torch.neuron.memory_snapshot()]


def outside(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    bounds = segments()
    return [t for t in tensors if t.numel() and not any(a <= t.data_ptr() and t.data_ptr() + t.element_size() <= b for a, b in bounds)]


def test_a_thousand_mixed_ops() -> None:
    rng = random.Random(0)
    torch.manual_seed(0)
    pool = [torch.randn(8, 16, device=DEVICE) for _ in range(4)]
    weight = torch.randn(16, 16, device=DEVICE)
    steps = [
        lambda x: x + 1,
        lambda x: x @ weight,
        lambda x: F.softmax(x, -1),
        lambda x: F.layer_norm(x, (16,)),
        lambda x: x.sort(-1)[0],
        lambda x: torch.topk(x, 16, dim=-1)[0],
        lambda x: x.cumsum(0),
        lambda x: F.dropout(x, 0.5),
        lambda x: torch.cat([x[:4], x[4:]]),
        lambda x: x.t().contiguous().t(),
        lambda x: x.to(torch.float64).to(torch.float32),
        lambda x: F.embedding(torch.arange(8, device=DEVICE), x),
        lambda x: torch.where(x > 0, x, -x),
        lambda x: x[x.sum(1).argsort()],
        lambda x: torch.nan_to_num(x / x.norm()),
        lambda x: F.conv1d(x[None], torch.randn(8, 8, 3, device=DEVICE), padding=1)[0],
        lambda x: torch.stack(torch._foreach_mul([x, x], 0.5))[0],
        lambda x: x.clamp(-3, 3),
        lambda x: torch.linalg.qr(x)[0] @ torch.ones(8, 16, device=DEVICE),
        lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])[0, 0],
    ]
    made = []
    for _ in range(1000):
        k = rng.randrange(len(pool))
        pool[k] = torch.nan_to_num(rng.choice(steps)(pool[k])).clamp(-100, 100)
        made.append(pool[k])
    torch.neuron.synchronize()
    assert all(t.device.type == DEVICE and t.shape == (8, 16) for t in made)
    assert not outside(made)


@pytest.mark.parametrize(
    "fn", [torch.nonzero, torch.unique, lambda x: x[x > 0], lambda x: x.to("neuron:1").to("neuron:0"), torch.linalg.svd]
)
def test_results_of_other_paths(fn: object) -> None:
    x = torch.randn(6, 6, device=DEVICE)
    result = fn(x)  # type: ignore[operator]
    assert not outside(list(result) if isinstance(result, tuple) else [result])
