"""Calls that the chip cannot run, on the host under ``TORCH_NEURONX_FALLBACK=allow``: the same as on the CPU. See conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_DOUBLE = torch.float64


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="neuron")
    return made.copy_(tensor)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for element in value for tensor in _tensors(element)] if isinstance(value, (list, tuple)) else []


def _same(function: Callable[..., Any], *inputs: torch.Tensor, tolerance: float = 1e-6) -> None:
    """Results and what is written to inputs: values, strides, conjugate bits, device."""
    host = [tensor.clone() for tensor in inputs]
    there = [_moved(tensor) for tensor in inputs]
    wanted, found = [*_tensors(function(*host)), *host], [*_tensors(function(*there)), *there]
    for a, b in zip(found, wanted, strict=True):
        assert a.device.type == "neuron" and a.dtype == b.dtype
        assert (a.stride(), a.is_conj()) == (b.stride(), b.is_conj())
        torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=tolerance)


def dtypes() -> None:
    """What no chip has: float64, complex numbers. Arguments keep their aliases, results the strides of the CPU."""
    x, c = torch.randn(4, 6, dtype=_DOUBLE), torch.randn(4, 4, dtype=torch.complex64)
    _same(lambda a: a.double() * 2, torch.tensor(3.0))  # a number
    _same(lambda a: a.double().reciprocal().float(), torch.randn(5))
    _same(lambda a: (a[::2].add_(1), a.t().mul_(2))[1], x)
    _same(lambda a: torch.add(a[0], a[1], out=a[2]), x)
    _same(lambda a: a.fill_(2.5)[1:].sub_(1), x)
    _same(lambda a: (a.t() + 1, a.sum(), a.cumsum(0), a.expand(2, 4, 6).sum(0)), x)
    _same(lambda a, b: torch.cat([a, b]), x, x + 1)
    _same(lambda a, b: (torch._foreach_add_([a, b], 1.5), torch._foreach_mul([a, b], 2.0))[1], x, x[0].clone())
    _same(lambda a: a * 2, torch.empty(0, 3, dtype=_DOUBLE))
    _same(lambda a: (a.conj() * 2, a.conj() + a, a.real + 1, a @ a.mH), c, tolerance=1e-5)
    _same(lambda a: torch.fft.rfft(a).abs(), torch.randn(8), tolerance=1e-5)
    leaf = _moved(x).requires_grad_()
    (leaf * leaf).sum().backward()
    assert leaf.grad is not None and torch.equal(leaf.grad.cpu(), 2 * x)
    assert repr(torch.ones(3, device="neuron")) == "tensor([1., 1., 1.], device='neuron:0')"


def results_that_depend_on_data() -> None:
    x = torch.randn(10)
    _same(lambda a: (a.nonzero(), a[a > 0], torch.where(a > 0)), x)
    _same(lambda a: torch.masked_select(a, a > 0, out=torch.empty(0, device=a.device)), x)
    _same(lambda a: a.unique(return_inverse=True, return_counts=True), torch.randint(0, 5, (20,)))
    _same(
        lambda a: torch.add(a, a, out=torch.empty(2, 2, dtype=_DOUBLE, device=a.device)), torch.randn(3, dtype=_DOUBLE).expand(4, 3).clone()
    )


def graphs() -> None:
    """A graph with such calls runs node by node."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).double().cumsum(0).float() * 2

    x = torch.randn(4, 3)
    torch.testing.assert_close(torch.compile(function, backend="neuron")(x.to("neuron")).cpu(), function(x))


def amp() -> None:
    """GradScaler computes the inverse of its scale in float64."""
    losses = []
    for device in ("cpu", "neuron"):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        x = torch.randn(3, 4)
        model.to(device)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler(device, init_scale=256.0)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(x.to(device)).square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    torch.testing.assert_close(losses[:2], losses[2:])


def everything() -> None:
    torch.manual_seed(0)
    for check in (dtypes, results_that_depend_on_data, graphs, amp):
        check()
        print(check.__name__, "ok", flush=True)
