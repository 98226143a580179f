"""torch.accelerator.Graph: capture a stream's work once, replay it without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_neuronx import _C

DEVICE = "neuron"


def test_replay_runs_again_on_the_same_memory() -> None:
    x = torch.zeros(8, device=DEVICE)
    graph = torch.accelerator.Graph()
    with torch.Stream(DEVICE), graph:
        x += 1  # never run before: learned on scratch memory, so that x stays as it is
        y = x * 10
    torch.neuron.synchronize()
    assert x.tolist() == [0] * 8
    for n in (1, 2, 3):
        graph.replay()
        torch.neuron.synchronize()
        assert x.tolist() == [n] * 8 and y.tolist() == [10 * n] * 8


def test_training_step_equals_eager() -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)).to(DEVICE)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    batches = torch.randn(5, 4, 6).to(DEVICE)
    target = torch.tensor([0, 1, 2, 0]).to(DEVICE)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    model, optimizer = make()
    step(model, optimizer, batches[0])
    expected = [step(model, optimizer, x).item() for x in batches]

    model, optimizer = make()
    step(model, optimizer, batches[0])
    static = batches[0].clone()
    graph = torch.accelerator.Graph()
    with graph:
        loss = step(model, optimizer, static)
    launches = _C._counters()["launches"]
    actual = []
    for x in batches:
        static.copy_(x)
        graph.replay()
        actual.append(loss.item())
    assert actual == expected
    assert _C._counters()["launches"] - launches <= len(batches)  # the copies; nothing of the step goes through the dispatcher


def test_memory_of_a_graph_is_its_own_until_reset() -> None:
    graph = torch.accelerator.Graph()
    x = torch.ones(1000, device=DEVICE)
    with graph:
        kept = (x + 1) * 2
        del_me = kept + 1
        result = del_me * 2
        del del_me
    others = [torch.full((1000,), -1.0, device=DEVICE) for _ in range(20)]
    for _ in range(3):
        graph.replay()
    torch.neuron.synchronize()
    assert all((t == -1).all() for t in others)
    assert result.unique().tolist() == [10.0]
    before = torch.neuron.memory_allocated()
    graph.reset()
    assert torch.neuron.memory_allocated() < before
    assert result.unique().tolist() == [10.0]  # still held by the user


def test_random_numbers_are_fresh_at_each_replay() -> None:
    graph = torch.accelerator.Graph()
    torch.manual_seed(5)
    with graph:
        x = torch.rand(100, device=DEVICE)
        y = F.dropout(torch.ones(100, device=DEVICE), 0.5)
    draws = []
    for _ in range(3):
        graph.replay()
        draws.append((x.tolist(), y.tolist()))
    assert len({str(d) for d in draws}) == 3
    torch.manual_seed(5)
    graph.replay()
    first = (x.tolist(), y.tolist())
    torch.manual_seed(5)
    eager = (torch.rand(100, device=DEVICE).tolist(), F.dropout(torch.ones(100, device=DEVICE), 0.5).tolist())
    assert first == eager


def test_what_waits_is_refused_and_nothing_is_lost() -> None:
    x = torch.arange(4.0, device=DEVICE)
    for bad in (lambda: x.sum().item(), lambda: x.cpu(), lambda: x.nonzero()):
        graph = torch.accelerator.Graph()
        with pytest.raises(RuntimeError, match="captured into a graph"), graph:
            bad()
        assert x.tolist() == [0, 1, 2, 3]
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="needs a capture"):
        graph.replay()


def test_capture_while_python_lines_are_recorded(run_python: Callable[..., Any]) -> None:
    code = """
import torch
x = torch.zeros(4, device="neuron")
x.add_(0)
graph = torch.accelerator.Graph()
with graph:
    x.add_(1)
for _ in range(3):
    graph.replay()
print(x.tolist())
"""
    result = run_python(code, TORCH_NEURONX_ENABLE_STACK_TRACE="1")
    assert result.stdout == "[3.0, 3.0, 3.0, 3.0]\n", result.stderr


def test_debug_dump(tmp_path: object) -> None:
    graph = torch.accelerator.Graph()
    graph.enable_debug_mode()
    x = torch.ones(3, device=DEVICE)
    with graph:
        x.add_(1)
    path = f"{tmp_path}/graph.dot"
    graph.debug_dump(path)
    with open(path) as file:
        assert "aten::add_.Tensor" in file.read()
