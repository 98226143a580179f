"""Eager calls on a NeuronCore, compared with the CPU; what is compiled and copied for them is counted. See conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torch_neuronx import _C


@dataclass
class Cost:
    """Of a block of code: NEFFs that were loaded, launches, bytes that were copied (h2d, d2h, d2d)."""

    neffs: int = 0
    launches: int = 0
    copied: tuple[int, int, int] = (0, 0, 0)


def _now() -> tuple[int, int, tuple[int, int, int]]:
    from torch_neuronx.compiler.driver import counters

    found = _C._counters()
    moved = found["bytes"]
    return counters["compiles"] + counters["hits"], found["launches"], (moved["h2d"], moved["d2h"], moved["d2d"])


@contextmanager
def cost() -> Iterator[Cost]:
    """Counts what a block costs."""
    torch.neuron.synchronize()
    before, counted = _now(), Cost()
    yield counted
    torch.neuron.synchronize()
    after = _now()
    counted.neffs, counted.launches = after[0] - before[0], after[1] - before[1]
    counted.copied = tuple(b - a for a, b in zip(before[2], after[2], strict=True))  # type: ignore[assignment]


def same(make: Callable[..., Any], *inputs: torch.Tensor, tolerance: float = 1e-5) -> Cost:
    """``make`` gives the same on both devices, and writes the same to its inputs; the cost of the device's run."""
    host = [tensor.clone() for tensor in inputs]
    there = [_moved(tensor) for tensor in inputs]
    wanted = make(*host)
    with cost() as counted:
        found = make(*there)
    for a, b in zip([found, *there], [wanted, *host], strict=True):
        assert a.device.type == "neuron"
        torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=tolerance)
        assert a.stride() == b.stride(), (a.stride(), b.stride())
    return counted


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """On the device, with the same strides."""
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="neuron")
    made.copy_(tensor)
    return made


def arithmetic() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    assert same(lambda a, b: a + b, x, y).neffs == 1
    assert same(lambda a, b: a + b, x + 1, y).neffs == 0, "the same program"
    assert same(lambda a: a * 2.5, x).neffs == 1
    assert same(lambda a: a * 3.5, x).neffs == 0, "a Scalar is an input of the program"
    assert same(lambda a: a.add_(1, alpha=2), x).neffs == 1
    same(lambda a: a.to(torch.bfloat16).float(), x, tolerance=1e-2)
    same(lambda a: a.sum(), x)
    same(lambda a, b: torch.where(a > b, a, b), x, y)
    same(lambda a: a.softmax(-1), x)
    same(lambda a: a.argmax(1), x)
    same(lambda a: torch.stack(a.topk(3)[:1]), x)
    same(lambda a: torch.cat([a, a * 2]), x)
    same(lambda a: a // 3, torch.arange(-6, 6))
    assert torch.arange(5, device="neuron").sum().item() == 10
    assert torch.ones(3, device="neuron").tolist() == [1.0, 1.0, 1.0]


def views() -> None:
    x = torch.randn(4, 6)
    assert same(lambda a: a.t() + 1, x).neffs == 1
    assert same(lambda a: a[1:3, ::2] * 2, x).neffs == 1
    assert same(lambda a: a[1:].clone(), x).neffs == 1
    assert same(lambda a: a[0:3].clone(), x).neffs == 0, "an offset is data, not part of the program"
    same(lambda a: a.as_strided((3, 3), (1, 2)) + 0, x)  # overlapping windows
    same(lambda a: a.expand(3, 4, 6).sum(0), x)
    same(lambda a: a.view(torch.int32) + 1, x)


def writes_through_views() -> None:
    x = torch.zeros(4, 6)

    def rows(a: torch.Tensor) -> torch.Tensor:
        a[1:3].add_(1)
        a.t()[2].mul_(5).sub_(1)
        a[:, ::2] = 7
        return a

    same(rows, x)

    def aliases(a: torch.Tensor) -> torch.Tensor:
        torch.add(a[0], a[1], out=a[2])
        a[1:].copy_(a[:-1].clone())
        return a

    same(aliases, torch.randn(4, 6))


def rotary() -> None:
    """Strided slice-assign, as rotary embeddings do it: a launch for each write, and nothing is copied besides."""
    x, cos, sin = torch.randn(2, 8, 16), torch.randn(8, 8), torch.randn(8, 8)

    def assign(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        even, odd = x[..., ::2], x[..., 1::2]
        torch.mul(even, cos, out=out[..., ::2])
        torch.mul(odd, sin, out=out[..., 1::2])
        return out

    counted = same(assign, x, cos, sin)
    assert counted == Cost(neffs=1, launches=2), counted  # the two writes differ in their offset alone
    counted = same(lambda a, b: a[..., 1::2].copy_(b), x, torch.randn(2, 8, 8))
    assert (counted.neffs, counted.launches, counted.copied) == (1, 1, (0, 0, 0)), counted


def matmul() -> None:
    """A transposed operand costs no copy: the strides are in the program."""
    x, w = torch.randn(5, 8), torch.randn(6, 8)
    counted = same(lambda a, b: a @ b.t(), x, w)
    assert counted == Cost(neffs=1, launches=1), counted
    same(lambda a, b: torch.bmm(a, b.transpose(1, 2)), torch.randn(2, 3, 4), torch.randn(2, 5, 4))
    same(lambda a, b: torch.nn.functional.linear(a, b, b[:, 0]), x, w)


def convolution() -> None:
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    w = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    counted = same(lambda a, b: torch.nn.functional.conv2d(a, b, padding=1), x, w, tolerance=1e-4)
    assert counted == Cost(neffs=1, launches=1), counted


def numbers_in_programs() -> None:
    """A call whose lowering looks at its numbers has a program for each value of them."""
    x, mean, var = torch.randn(4, 3), torch.zeros(3), torch.ones(3)

    def norm(momentum: float) -> Cost:
        return same(lambda a, m, v: torch.nn.functional.batch_norm(a, m, v, training=True, momentum=momentum), x, mean, var)

    assert [norm(0.1).neffs, norm(0.1).neffs, norm(0.2).neffs] == [1, 0, 1]

    ord_of = same(lambda a: torch.linalg.vector_norm(a, 3.0), x), same(lambda a: torch.linalg.vector_norm(a, 2.0), x)
    assert [one.neffs for one in ord_of] == [1, 1]


def fused_optimizers() -> None:
    """A learning rate, or a decay, that changes needs no new program."""
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        found, costs = [], []
        for device in ("cpu", "neuron"):
            torch.manual_seed(0)
            parameter = torch.nn.Parameter(torch.randn(4).to(device))
            optimizer = kind([parameter], lr=0.1, weight_decay=0.01, fused=True)  # type: ignore[call-arg]
            for _ in range(4):
                optimizer.param_groups[0]["lr"] *= 0.9
                optimizer.param_groups[0]["weight_decay"] *= 0.5
                parameter.grad = torch.ones(4).to(device)
                with cost() as counted:
                    optimizer.step()
                costs.append(counted.neffs)
            found.append(parameter.detach().cpu())
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
        assert costs[-2:] == [0, 0], (kind, costs)


def windows() -> None:
    """Adaptive Eager: a window is right the first times, when its calls run one by one, and as one program.

    Inputs change, so that nothing is right because it was there before.
    """
    there = torch.zeros(8).to("neuron")
    held = []
    for turn in range(6):
        x = torch.arange(8.0) + turn
        there.copy_(x)
        kept = there * 2 + 1  # lives on
        held.append((kept, x * 2 + 1))
        there.add_(kept.relu() - 3)
        last = torch.stack([there, kept]).sum(0)
        assert last.cpu().equal(x + x * 2 + 1 - 3 + x * 2 + 1), turn
        if turn % 2:
            held.clear()
        for found, wanted in held:
            assert found.cpu().equal(wanted), turn
    assert _C._counters()["windows"]["launches"] > 0


def random() -> None:
    """The same numbers as the emulated device's, whose generator it is: see tests/test_random.py."""
    torch.manual_seed(3)
    first = torch.rand(5, device="neuron"), torch.randn(5, device="neuron"), torch.nn.functional.dropout(torch.ones(64, device="neuron"))
    torch.manual_seed(3)
    again = torch.rand(5, device="neuron"), torch.randn(5, device="neuron"), torch.nn.functional.dropout(torch.ones(64, device="neuron"))
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    assert 10 < (first[2] != 0).sum().item() < 54
    assert not torch.equal(torch.rand(5, device="neuron").cpu(), first[0].cpu())


def streams() -> None:
    one, two = torch.neuron.Stream(), torch.neuron.Stream()
    x = torch.ones(64, device="neuron")
    event, timing = torch.neuron.Event(), torch.neuron.Event(enable_timing=True)
    with torch.neuron.stream(one):
        one.wait_stream(torch.neuron.default_stream())
        for _ in range(20):
            x = x + 1
        event.record(one)
    two.wait_event(event)
    with torch.neuron.stream(two):
        y = x * 2
        timing.record(two)
    timing.synchronize()
    assert event.query() and two.query() and y.cpu()[0].item() == 42.0
    end = torch.neuron.Event(enable_timing=True)
    end.record()
    end.synchronize()
    assert timing.elapsed_time(end) >= 0
    a = torch.arange(8.0).pin_memory()
    assert a.to("neuron", non_blocking=True).cpu().equal(a)


def errors() -> None:
    """Bad arguments raise what they raise on the CPU, and what does not lower is refused by its name."""
    for device in ("cpu", "neuron"):
        try:
            torch.ones(2, 3, device=device) + torch.ones(4, device=device)
        except RuntimeError as error:
            assert "must match the size of tensor" in str(error), error
        else:
            raise AssertionError("shapes that do not match")
    try:
        torch.ones(4, device="neuron").nonzero()
    except NotImplementedError as error:
        assert "aten::nonzero cannot run on device neuron: its results depend on data" in str(error), error
    else:
        raise AssertionError("nonzero ran somewhere")


def properties(device: str) -> None:
    """Says what it is, and never that it is emulated."""
    found = torch.neuron.get_device_properties(0)
    assert (found.architecture, found.is_emulated) == (device, False)
    assert torch.neuron.get_device_name() == {"trn2": "Trainium2", "trn3": "Trainium3"}[device]
    assert found.total_memory == {"trn2": 24 << 30, "trn3": 36 << 30}[device]
    assert torch.neuron.device_count() == 4


def everything(device: str) -> None:
    torch.manual_seed(0)
    properties(device)
    for check in (
        arithmetic,
        views,
        writes_through_views,
        rotary,
        matmul,
        convolution,
        numbers_in_programs,
        fused_optimizers,
        random,
        streams,
        errors,
    ):
        check()
        print(check.__name__, "ok", flush=True)
