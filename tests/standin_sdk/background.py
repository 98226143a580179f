"""``TORCH_NEURONX_COMPILE=background``: programs run on the host until their NEFFs are there. See conftest.py and docs/dev/trainium.md."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.standin_sdk.eager import same
from torch_neuronx import _C


def _count() -> tuple[int, int]:
    """Launches on the host, and compilations, until now."""
    from torch_neuronx.compiler.driver import counters

    torch.neuron.synchronize()
    return _C._counters()["host_launches"], counters["compiles"]


def _calls() -> list[tuple[Callable[..., Any], list[torch.Tensor]]]:
    """Calls that meet views, aliases, writes, dtypes, numbers and lists, with what they are called on."""
    x, y = torch.randn(4, 6), torch.randn(4, 6)

    def writes(a: torch.Tensor) -> torch.Tensor:
        a[1:3].add_(1)
        a.t()[2].mul_(5).sub_(1)
        a[:, ::2] = 7
        torch.add(a[0], a[1], out=a[2])
        return a

    def updates(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([a, b], 2.5)
        torch._foreach_mul_([a, b], [2.0, 3.0])
        return a - b

    return [
        (lambda a, b: a @ b.t() + 1.5, [x, y]),
        (lambda a: a[1:3, ::2].softmax(-1), [x]),
        (lambda a: a.as_strided((3, 3), (1, 2)) * 2, [x]),
        (lambda a: a.expand(3, 4, 6).sum(0), [x]),
        (lambda a: (a.to(torch.bfloat16) * 3).float(), [x]),
        (lambda a: torch.cat([a, a[:2]]).argmax(1), [x]),
        (lambda a: torch.where(a > 0, a, 0.5), [x]),
        (lambda a, w: F.conv2d(a, w, padding=1), [torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)]),
        (lambda a, m, v: F.batch_norm(a, m, v, training=True, momentum=0.1), [torch.randn(4, 3), torch.zeros(3), torch.ones(3)]),
        (writes, [x]),
        (updates, [x, y]),
    ]


def eager() -> None:
    """The same results before and after, on the host first and on the chip then, and nobody waits for the compiler."""
    from torch_neuronx.compiler import wait

    torch.manual_seed(0)
    calls = _calls()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for function, inputs in calls:
            same(function, *inputs, tolerance=1e-4)
    told = [str(one.message) for one in caught if "TorchNeuron/Compile" in str(one.message)]
    assert len(told) == 1 and "TORCH_NEURONX_COMPILE=background" in told[0], told
    hosted, _ = _count()
    assert hosted >= len(calls), hosted
    torch.manual_seed(3)
    drawn = torch.rand(64, device="neuron"), F.dropout(torch.ones(64, device="neuron"))
    assert wait(200)
    hosted, compiled = _count()
    with torch.neuron.explain() as report:
        for function, inputs in calls:
            same(function, *inputs, tolerance=1e-4)
    torch.manual_seed(3)
    again = torch.rand(64, device="neuron"), F.dropout(torch.ones(64, device="neuron"))
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(drawn, again, strict=True))
    assert _count() == (hosted, compiled), "what is compiled runs on the chip"
    assert report.as_dict()["host_launches"] == 0 and "on the host" not in str(report)
    with torch.neuron.explain() as report:
        torch.ones(3, 5, device="neuron").cumsum(1).cpu()
    assert report.as_dict()["host_launches"] > 0 and "whose programs were still being compiled" in str(report)


def swap() -> None:
    """One loop, from the host to the chip in the middle of it, on two streams with events: each step follows the one before."""
    x = torch.zeros(64).to("neuron")
    streams = [torch.neuron.default_stream(), torch.neuron.Stream()]
    steps, before, end = 0, -1, time.monotonic() + 200
    while _count()[0] != before:  # until ten steps have run on the chip
        before = _count()[0]
        for _ in range(10):
            with torch.neuron.stream(streams[steps % 2]):
                streams[steps % 2].wait_stream(streams[1 - steps % 2])
                x.add_(1)
            steps += 1
        time.sleep(0.05)
        assert time.monotonic() < end
    hosted, compiled = _count()
    assert 0 < hosted < steps and compiled == 1, (hosted, steps, compiled)
    assert x.tolist() == [float(steps)] * 64, (steps, x)


def graph() -> None:
    """A compiled graph is one launch, wherever it runs."""
    from torch_neuronx.compiler import wait

    torch.manual_seed(0)
    first = torch.nn.Linear(8, 16)
    model = torch.nn.Sequential(first, torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    x = torch.randn(3, 8)
    wanted = model(x)
    wanted.square().sum().backward()
    assert first.weight.grad is not None
    gradient = first.weight.grad.clone()
    model.to("neuron")
    compiled = torch.compile(model, backend="neuron")
    for hosted in (3, 0):  # the graph, square, sum; then none
        model.zero_grad()
        before = _count()[0]
        found = compiled(x.to("neuron"))
        loss = found.square().sum()
        assert _count()[0] - before == hosted
        loss.backward()
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(first.weight.grad.cpu(), gradient, rtol=1e-4, atol=1e-4)
        assert wait(200)


def shapes() -> None:
    """A graph for sizes that change: a new size is one launch on the host, and has a program of its own once that is compiled."""
    from torch_neuronx.compiler import wait

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).softmax(-1).sum(0)

    compiled = torch.compile(function, backend="neuron", dynamic=True)
    for hosted in (1, 0):
        for rows in (3, 5, 9, 17):
            x = torch.randn(rows, 6)
            there = x.to("neuron")
            before = _count()[0]
            found = compiled(there)
            assert _count()[0] - before == hosted, rows
            torch.testing.assert_close(found.cpu(), function(x))
        assert wait(200)
    assert _count()[1] == 4


def windows() -> None:
    """A window whose program is not there runs as its calls."""
    from torch_neuronx.compiler import wait

    def step(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2 + 1).relu() - 3).exp()

    x, there = torch.randn(32), torch.zeros(32).to("neuron")

    def windows_of_one_launch() -> int:
        return int(_C._counters()["windows"]["launches"])

    def check() -> None:
        x.add_(0.125)
        there.copy_(x)
        torch.testing.assert_close(step(there).cpu(), step(x))

    for _ in range(3):
        check()
    assert windows_of_one_launch() == 0
    assert wait(200)
    check()
    assert windows_of_one_launch() == 1


def refused() -> None:
    """What the compiler refuses is raised where the program is launched, at the next synchronisation, each time; other work goes on."""
    from torch_neuronx.compiler import CompilerError, wait

    x, y = torch.zeros(4).to("neuron"), torch.ones(4).to("neuron")
    torch.neg(x, out=y)
    torch.neuron.synchronize()
    assert y.cpu().tolist() == [0.0] * 4 and _count()[0] == 1
    assert wait(200)
    for _ in range(2):
        torch.neg(x, out=y)
        try:
            torch.neuron.synchronize()
        except CompilerError as error:
            assert "neuronx-cc failed with exit status 3 on aten::neg.out" in str(error), error
        else:
            raise AssertionError("the compiler's failure was not raised")
    assert y.cpu().tolist() == [0.0] * 4 and _count()[0] == 1


def leave() -> None:
    """Ends with compilers at work and programs queued."""
    x = torch.ones(4).to("neuron")
    print((x + 1).mul(3).neg().exp().sum().item(), flush=True)


def contradiction() -> None:
    try:
        torch.zeros(1, device="neuron")
    except RuntimeError as error:
        assert "TORCH_NEURONX_COMPILE=background runs programs on the host" in str(error), error
    else:
        raise AssertionError("the host was used although TORCH_NEURONX_FALLBACK=error")


def warm() -> None:
    """With all in the cache, nothing runs on the host."""
    for function, inputs in _calls():
        same(function, *inputs, tolerance=1e-4)
    assert _count() == (0, 0)
