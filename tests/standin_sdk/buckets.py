"""``torch_neuronx.buckets()`` on the chip: a program for each bucket, not for each length. See conftest.py and docs/dev/buckets.md."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F

import torch_neuronx
from torch_neuronx import _C


def _step(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens), tokens.flatten())


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16), _Attention(16), torch.nn.Linear(16, 50), torch.nn.Flatten(0, 1)
    )


def lengths(first: str, last: str) -> None:
    """Forward and backward on each length: the CPU's losses and gradients; prints what was compiled."""
    from torch_neuronx.compiler.driver import counters

    host = _model()
    model = copy.deepcopy(host).to("neuron")
    step = torch.compile(_step, backend="neuron", dynamic=True)
    torch_neuronx.buckets()
    for length in range(int(first), int(last) + 1):
        tokens = torch.randint(0, 50, (2, length))
        wanted = torch.autograd.grad(_step(host, tokens), list(host.parameters()))
        x = tokens.to("neuron")
        torch._dynamo.mark_static(x, 0)
        found = torch.autograd.grad(step(model, x), list(model.parameters()))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-5)
    print(counters)


def background() -> None:
    """On the host until the bucket's program is there, on the chip for all lengths in it from then on."""
    from torch_neuronx.compiler import wait

    host = _model().requires_grad_(False)
    model = copy.deepcopy(host).to("neuron")
    step = torch.compile(_step, backend="neuron", dynamic=True)

    def run(length: int) -> int:
        """Launches on the host that it took."""
        tokens = torch.randint(0, 50, (2, length))
        x = tokens.to("neuron")
        torch._dynamo.mark_static(x, 0)
        before = _C._counters()["host_launches"]
        torch.testing.assert_close(step(model, x).cpu(), _step(host, tokens), rtol=1e-3, atol=1e-5)
        return int(_C._counters()["host_launches"]) - before

    with torch_neuronx.buckets():
        assert run(9) == 1
        assert wait(200)
        assert [run(length) for length in (9, 10, 13, 16)] == [0, 0, 0, 0]
        assert run(17) == 1


class _Attention(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        return x + F.scaled_dot_product_attention(q, k, v).squeeze(1)
