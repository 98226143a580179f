"""``torch.distributed.rpc`` with tensors of ``neuron``: device maps, remote references, gradients, streams, errors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn
from torch.distributed.optim import DistributedOptimizer

from tests.distributed.workers import Ranks
from torch_neuronx.distributed import rpc_backend

ROOT = Path(__file__).resolve().parents[2]
D = "neuron"


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Fresh processes: PyTorch keeps the first agent of a process, and its devices, for remote references and answers of later ones."""
    ranks = Ranks(2)
    yield ranks
    ranks.close()


def name(rank: int) -> str:
    return f"worker{rank}"


@contextmanager
def workers(maps: Any = None, **options: Any) -> Iterator[tuple[int, str]]:
    """This rank as a worker whose device is the one of its rank; gives its rank and the other's name. ``maps``: of each rank."""
    rank = dist.get_rank()
    torch.neuron.set_device(rank)
    if maps is None:
        maps = [{name(1 - r): {f"{D}:{r}": f"{D}:{1 - r}"}} for r in range(2)]
    settings = rpc.TensorPipeRpcBackendOptions(device_maps=maps[rank], **options)
    rpc.init_rpc(name(rank), rank=rank, world_size=2, backend=rpc_backend(), rpc_backend_options=settings)
    try:
        yield rank, name(1 - rank)
    finally:
        rpc.shutdown()


def same(actual: torch.Tensor, expected: Any, device: torch.device) -> None:
    assert actual.device == device, actual.device
    assert torch.equal(actual.cpu(), torch.as_tensor(expected, dtype=actual.dtype)), (actual, expected)


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = x + 1
    return x


def double(x: torch.Tensor, device: int) -> torch.Tensor:
    assert x.device == torch.device(D, device), x.device
    return x * 2


def check_calls() -> None:
    group = dist.new_group([0, 1])
    with workers() as (rank, other):
        check_values(rank, other)
        check_errors(rank, other)
        check_values(rank, other)  # it goes on
        if rank == 0:
            check_order(other, group)


def test_calls(ranks: Ranks) -> None:
    ranks.run(check_calls)


def check_values(rank: int, other: str) -> None:
    here, there = torch.device(D, rank), 1 - rank
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        x = torch.tensor([0, 1, 1], device=here).to(dtype)
        same(rpc.rpc_sync(other, torch.logical_not, args=(x,)), [1, 0, 0], here)
    x = torch.arange(12.0, device=here).view(3, 4)
    same(rpc.rpc_sync(other, double, args=(x, there)), torch.arange(12.0).view(3, 4) * 2, here)
    same(rpc.rpc_sync(other, double, args=(x[:, 1], there)), [2.0, 10, 18], here)
    same(rpc.rpc_sync(other, double, args=(x.t(), there)), torch.arange(12.0).view(3, 4).t() * 2, here)
    same(rpc.rpc_sync(other, double, args=(x[:0], there)), torch.empty(0, 4), here)
    same(rpc.rpc_sync(other, double, args=(torch.tensor(3.0, device=here), there)), 6.0, here)
    same(rpc.rpc_sync(other, torch.add, args=(torch.ones(2), 1)), [2.0, 2], torch.device("cpu"))  # which no map names
    sparse = torch.eye(3, device=here).to_sparse()
    same(rpc.rpc_sync(other, torch.mul, args=(sparse, 2)).to_dense(), torch.eye(3) * 2, here)
    doubled = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), device=here)  # not coalesced
    same(rpc.rpc_sync(other, torch.add, args=(doubled, doubled)).to_dense(), [6.0, 0, 0], here)
    assert rpc.rpc_sync(other, torch.Tensor.stride, args=(x[:, :3],)) == (4, 1)
    big = torch.randn(1_000_000, device=here)
    assert torch.equal(rpc.rpc_sync(other, scripted, args=(big,)), scripted(big))
    futures = [rpc.rpc_async(other, torch.add, args=(big, i)) for i in range(8)]
    for i, future in enumerate(futures):
        assert torch.equal(future.wait(), big + i)
    chained = rpc.rpc_async(other, torch.add, args=(x, 1)).then(lambda f: f.value().sum())
    same(chained.wait(), 78.0, here)


def check_maps() -> None:
    cpu = torch.device("cpu")
    maps: list[Any] = [{name(1): {f"{D}:0": "cpu", "cpu": f"{D}:3", f"{D}:2": f"{D}:1"}, name(0): {f"{D}:0": f"{D}:2"}}, {}]
    with workers(maps) as (rank, other):
        if rank == 0:
            same(rpc.rpc_sync(other, torch.add, args=(torch.ones(2, device=f"{D}:0"), 1)), [2.0, 2], torch.device(D, 0))
            same(rpc.rpc_sync(other, double, args=(torch.ones(2), 3)), [2.0, 2], cpu)
            same(rpc.rpc_sync(other, double, args=(torch.ones(2, device=f"{D}:2"), 1)), [2.0, 2], torch.device(D, 2))
            same(rpc.rpc_sync(name(0), double, args=(torch.ones(2, device=f"{D}:0"), 2)), [2.0, 2], torch.device(D, 0))  # to itself
            with pytest.raises(RuntimeError, match="device mapping is not available for destination worker1 for device neuron:1"):
                rpc.rpc_sync(other, torch.add, args=(torch.ones(2, device=f"{D}:1"), 1))
        else:
            with pytest.raises(RuntimeError, match="only supports CPU tensors by default"):
                rpc.rpc_sync(other, torch.add, args=(torch.ones(2, device=D), 1))


def test_device_maps(ranks: Ranks) -> None:
    ranks.run(check_maps)


def check_refused() -> None:
    for device, message in ((f"{D}:99", "devices with invalid indices"), (D, "with their index"), ("meta", "neither a neuron device")):
        maps = [{name(1): {f"{D}:0": device}}, {}]
        with pytest.raises(ValueError, match=message), workers(maps):
            raise AssertionError("not reached")
    with pytest.raises(NotImplementedError, match="world_size"):
        rpc.init_rpc(name(dist.get_rank()), rank=dist.get_rank(), backend=rpc_backend())


def test_bad_maps_are_refused(ranks: Ranks) -> None:
    ranks.run(check_refused)


class Owned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2).to(torch.device(D, dist.get_rank()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
    return module.local_value()(x)


def weight(module: Any) -> torch.Tensor:
    return module.local_value().linear.weight.detach()


def check_references() -> None:
    with workers() as (rank, other):
        here = torch.device(D, rank)
        reference = rpc.remote(other, torch.add, args=(torch.ones(2, device=here), 1))
        same(reference.to_here(), [2.0, 2], here)
        same(rpc.rpc_sync(other, torch.add, args=(reference.to_here(), 1)), [3.0, 3], here)
        module = rpc.remote(other, Owned)
        x = torch.ones(4, 3, device=here)
        before = rpc.rpc_sync(other, weight, args=(module,))
        with dist_autograd.context() as context:
            output = rpc.rpc_sync(other, forward, args=(module, x.requires_grad_()))
            assert output.device == here
            dist_autograd.backward(context, [output.sum()])
            gradients = dist_autograd.get_gradients(context)
            torch.testing.assert_close(gradients[x], before.sum(0).expand(4, 3))
            optimizer = DistributedOptimizer(torch.optim.SGD, parameters(other, module), lr=0.5)
            optimizer.step(context)
        after = rpc.rpc_sync(other, weight, args=(module,))
        torch.testing.assert_close(after, before - 0.5 * 4)
        del reference, module, optimizer
        gc.collect()


def references(module: Any) -> list[Any]:
    return [rpc.RRef(parameter) for parameter in module.local_value().parameters()]


def parameters(other: str, module: Any) -> list[Any]:
    return rpc.rpc_sync(other, references, args=(module,))


def run_documented(script: str) -> None:
    names: dict[str, Any] = {}
    exec(script, names)
    same(names["y"], [2.0, 2.0], torch.device(D, dist.get_rank()))


def test_documented_script_runs(ranks: Ranks) -> None:
    blocks = [block.split("```")[0] for block in (ROOT / "docs" / "distributed.md").read_text().split("```python\n")[1:]]
    (script,) = [block for block in blocks if "init_rpc" in block]
    ranks.run(run_documented, script)


def test_references_and_gradients(ranks: Ranks) -> None:
    ranks.run(check_references)


def check_order(other: str, group: Any) -> None:
    """The host does not wait for a stream that waits for the other rank, which goes on only when it is asked to."""
    x = torch.full((50_000,), 1.0, device=D)
    dist.all_reduce(x, group=group)  # the other rank comes only when it is told to, below
    future = rpc.rpc_async(other, torch.mul, args=(x, 10))
    rpc.rpc_sync(other, reduce_there, args=(dist.distributed_c10d._get_process_group_name(group),))
    same(future.wait(), torch.full((50_000,), 30.0), torch.device(D, 0))


def reduce_there(group: str) -> None:
    x = torch.full((50_000,), 2.0, device=torch.device(D, dist.get_rank()))  # this thread's current device is 0, as on CUDA
    dist.all_reduce(x, group=dist.distributed_c10d._resolve_process_group(group))
    assert x[0].item() == 3


def breaks(x: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"no such thing on {x.device}")


def out_of_range(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2, device=x.device)[x]  # which the device finds out


def check_errors(rank: int, other: str) -> None:
    here = torch.device(D, rank)
    with pytest.raises(ValueError, match=f"no such thing on neuron:{1 - rank}"):
        rpc.rpc_sync(other, breaks, args=(torch.ones(1, device=here),))
    with pytest.raises(Exception, match=r"out of (bounds|range)"):
        rpc.rpc_sync(other, out_of_range, args=(torch.tensor([5], device=here),))
