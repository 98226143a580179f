"""DataParallel on one and on several devices, and torch.nn.parallel.comm."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import comm

DEVICE = "neuron"
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using -1 to represent CPU"),  # PyTorch's own call in the backward of Scatter
    pytest.mark.filterwarnings("ignore:PyTorch is not compiled with NCCL"),
]
ONE, ALL = [0], list(range(torch.neuron.device_count()))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.mark.parametrize("ids", [ONE, ALL[:2], ALL], ids=len)
@pytest.mark.parametrize("source", ["cpu", DEVICE])
def test_equals_one_model(ids: list[int], source: str) -> None:
    model = make_model()
    model[1] = nn.Identity()  # batch statistics are those of each replica, on every device
    twin = copy.deepcopy(model).to(DEVICE)
    parallel = nn.DataParallel(twin, device_ids=ids)
    x = torch.randn(9, 6, requires_grad=True)
    y = x.detach().to(source).requires_grad_()
    expected, actual = model(x), parallel(y)
    assert actual.device == torch.device(DEVICE, 0)
    torch.testing.assert_close(actual.cpu(), expected)
    expected.square().sum().backward()
    actual.square().sum().backward()
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(y.grad.cpu(), x.grad)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and q.grad.device == torch.device(DEVICE, 0)
        torch.testing.assert_close(q.grad.cpu(), p.grad)


def test_uses_all_devices_by_default() -> None:
    seen = []

    class Spy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((x.device.index, len(x)))
            return x * 2

    out = nn.DataParallel(Spy())(torch.ones(2 * len(ALL), 3, device=DEVICE))
    assert sorted(seen) == [(index, 2) for index in ALL]
    assert out.shape == (2 * len(ALL), 3) and (out == 2).all()


def test_training() -> None:
    model = nn.DataParallel(make_model().to(DEVICE), device_ids=ALL[:2]).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(32, 6, device=DEVICE), torch.randint(0, 3, (32,), device=DEVICE)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.9


def test_comm() -> None:
    x = torch.arange(10.0).view(5, 2)
    pieces = comm.scatter(x, ALL[:2], dim=0)
    assert [p.device.index for p in pieces] == ALL[:2] and torch.equal(torch.cat([p.cpu() for p in pieces]), x)
    pieces = comm.scatter(x.to(DEVICE), ALL[:2], [1, 4])
    assert [len(p) for p in pieces] == [1, 4]
    assert torch.equal(comm.gather(pieces, 0, 1).cpu(), x) and comm.gather(pieces, 0, 1).device.index == 1
    assert torch.equal(comm.gather(pieces, 0, "cpu"), x)
    out = torch.empty(5, 2, device=DEVICE)
    assert torch.equal(comm.gather(pieces, out=out).cpu(), x)
    out_pieces = [torch.empty(2, 2, device=f"{DEVICE}:0"), torch.empty(3, 2, device=f"{DEVICE}:1")]
    comm.scatter(x, out=out_pieces)
    assert torch.equal(comm.gather(out_pieces, 0, "cpu"), x)
    copies = comm.broadcast(x, ALL)
    assert [c.device.index for c in copies] == ALL and all(torch.equal(c.cpu(), x) for c in copies)
    comm.broadcast(x * 3, out=copies)
    assert all(torch.equal(c.cpu(), x * 3) for c in copies)
    (first, second) = comm.broadcast_coalesced([x.to(DEVICE), x.to(DEVICE) + 1], ALL[:2])
    assert torch.equal(second[1].cpu(), x + 1) and second[0].device.index == 1 and first[0].device.index == 0
    assert comm.reduce_add([c.clone() for c in copies], 0).cpu().tolist() == (x * 3 * len(ALL)).tolist()
    z = torch.complex(x, x)
    assert torch.equal(torch.view_as_complex(comm.scatter(z, ALL[:2])[0]).cpu(), z[:3])


def test_refused() -> None:
    x = torch.ones(5, 2, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"chunk_sizes \[1, 2\] must .* add up to 5"):
        comm.scatter(x, ALL[:2], [1, 2])
    with pytest.raises(RuntimeError, match="out has size 4"):
        comm.gather([x], out=torch.empty(4, 2, device=DEVICE))
    with pytest.raises(RuntimeError, match=r"out has shape \(4, 2\)"):
        comm.broadcast(x, out=[torch.empty(4, 2, device=DEVICE)])


def test_a_model_left_on_the_cpu_is_refused_with_the_remedy() -> None:
    with pytest.raises(RuntimeError, match="module must have its parameters and buffers on device neuron:0"):
        nn.DataParallel(make_model(), device_ids=ALL[:2])(torch.randn(4, 6))
