"""Training on a NeuronCore, compared with the CPU: losses of a few steps. See conftest.py."""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
import torch.nn.functional as F

from tests.lowering.models import MODELS


def _optimizer(model: torch.nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "ResNet":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def losses(model: Any, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def train(name: str, mode: str, steps: str = "4") -> None:
    """Compares with the CPU, and prints how many programs were compiled and how many came from the cache."""
    from torch_neuronx.compiler.driver import counters

    torch.manual_seed(0)
    make_model, make_batch = MODELS[name]
    model, (inputs, targets) = make_model(), make_batch()
    host = copy.deepcopy(model)
    wanted = losses(host, _optimizer(host, name), inputs, targets, int(steps))
    model.to("neuron")
    function = torch.compile(model, backend="neuron") if mode == "compiled" else model
    found = losses(function, _optimizer(model, name), inputs.to("neuron"), targets.to("neuron"), int(steps))
    print(json.dumps({"cpu": wanted, "neuron": found, **counters}))
    assert max(abs(a - b) for a, b in zip(wanted, found, strict=True)) < 1e-3
    assert wanted[-1] < wanted[0]


def graph() -> None:
    """One compiled graph, and what was compiled for it. All tensors come from the host, so that nothing else is compiled."""
    from torch_neuronx.compiler.driver import counters

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).requires_grad_(False)
    x = torch.randn(8, 16)
    wanted = model(x)
    found = torch.compile(model.to("neuron"), backend="neuron")(x.to("neuron")).cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    print(json.dumps({"result": found.tolist(), **counters}))
