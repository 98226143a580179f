"""PyTorch's parallelism on ``neuron``: options of DDP and FSDP, DTensor, optimizers, checkpoints. Four ranks against one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.distributed.workers import Ranks

D = "neuron"


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)).to(D, dtype)


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(step)).to(D)


def mine(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4, shard: bool = True) -> None:
    for step in range(steps):
        x = batch(step)
        loss = model(mine(x) if shard else x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def alone(steps: int = 4, make: Any = plain_sgd) -> dict[str, torch.Tensor]:
    model = make_model()
    train(model, make(model.parameters()), steps, shard=False)
    return {name: x.detach().cpu() for name, x in model.state_dict().items()}


def full(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    from torch.distributed.tensor import DTensor

    return {name: (x.full_tensor() if isinstance(x, DTensor) else x).detach().cpu() for name, x in state.items()}


def same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        try:
            torch.testing.assert_close(actual[name], expected[name], rtol=tolerance, atol=tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


# ---- DDP ----


def check_ddp_options() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    expected = alone()
    for options in ({"static_graph": True}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 1e-4}, {"find_unused_parameters": True}):
        model = DDP(make_model(), **options)
        model._set_ddp_runtime_logging_sample_rate(1)
        train(model, sgd(model))
        measured = model._get_ddp_logging_data()
        assert (
            measured["forward_compute_time"] > 0 and measured["backward_compute_time"] >= measured["backward_compute_comm_overlap_time"] > 0
        )
        same(full(model.module.state_dict()), expected)
    hooked = {
        "allreduce": (None, default_hooks.allreduce_hook, 1e-5),
        "fp16": (None, default_hooks.fp16_compress_hook, 1e-2),
    }
    for state, hook, tolerance in hooked.values():
        model = DDP(make_model())
        model.register_comm_hook(state, hook)
        train(model, sgd(model))
        same(full(model.module.state_dict()), expected, tolerance)
    with pytest.raises(TypeError, match="NCCL"):  # PyTorch's own list of backends
        DDP(make_model()).register_comm_hook(None, default_hooks.bf16_compress_hook)
    model = DDP(make_model())
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    train(model, sgd(model))
    assert all(torch.isfinite(x).all() for x in full(model.module.state_dict()).values())


def test_ddp_options_and_hooks(ranks4: Ranks) -> None:
    ranks4.run(check_ddp_options)


def check_no_sync_and_join() -> None:
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel as DDP

    model = DDP(make_model())
    x = batch(0)
    with model.no_sync():
        model(mine(x)[:1]).square().sum().backward()
    local = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, local[0])
    assert not torch.equal(gathered[0], gathered[1])  # nothing was averaged
    model(mine(x)[1:]).square().sum().backward()
    reference = make_model()
    reference(x).square().sum().backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad * dist.get_world_size(), q.grad, rtol=1e-4, atol=1e-5)
    # uneven inputs
    model = DDP(make_model())
    optimizer = sgd(model)
    with Join([model]):
        for step in range(dist.get_rank() + 1):
            model(batch(step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, full(model.module.state_dict()))
    assert all(torch.isfinite(x).all() for x in states[0].values())


def test_no_sync_and_join(ranks4: Ranks) -> None:
    ranks4.run(check_no_sync_and_join)


def check_sync_batch_norm() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        reference = nn.BatchNorm2d(3).to(D)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference))
        x = torch.randn(8, 3, 5, 2, generator=torch.Generator().manual_seed(3)).to(D, dtype)
        whole, part = x.clone().requires_grad_(), mine(x).clone().requires_grad_()
        expected, actual = reference(whole), model(part)
        tolerance = 1e-4 if dtype == torch.float32 else 5e-2
        torch.testing.assert_close(actual, mine(expected), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(model.running_mean, reference.running_mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.running_var, reference.running_var, rtol=1e-4, atol=1e-5)
        (expected.float() ** 3).sum().backward()
        (actual.float() ** 3).sum().backward()
        assert whole.grad is not None and part.grad is not None
        torch.testing.assert_close(part.grad, mine(whole.grad), rtol=tolerance, atol=tolerance * 10)
        dist.all_reduce(model.weight.grad)
        torch.testing.assert_close(model.weight.grad, reference.weight.grad, rtol=tolerance, atol=tolerance)


def test_sync_batch_norm(ranks4: Ranks) -> None:
    ranks4.run(check_sync_batch_norm)


# ---- FSDP ----


def check_fsdp2_options() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    expected = alone()

    def sharded(**options: Any) -> Any:
        model = make_model()
        for i in (0, 3):
            fully_shard(model[i], **options)
        return fully_shard(model, **options)

    for options in ({"reshard_after_forward": False}, {"reshard_after_forward": 2}):
        model = sharded(**options)
        model.set_modules_to_forward_prefetch([model[0], model[3]])
        train(model, sgd(model))
        same(full(model.state_dict()), expected)
    model = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    train(model, sgd(model))
    same(full(model.state_dict()), expected, 2e-2)
    model = sharded(offload_policy=CPUOffloadPolicy())
    train(model, sgd(model))
    assert all(p.device.type == "cpu" for p in model.parameters())
    same({name: x.to_local().cpu() for name, x in model.state_dict().items()}, {n: shard_of(x) for n, x in expected.items()})
    model = make_model()
    for i in (0, 3):
        model[i] = checkpoint_wrapper(model[i])
        fully_shard(model[i])
    fully_shard(model)
    train(model, sgd(model))
    same({name.replace("_checkpoint_wrapped_module.", ""): x for name, x in full(model.state_dict()).items()}, expected)
    model = sharded()
    optimizer = sgd(model)
    total = torch.nn.utils.clip_grad_norm_(train_once(model, optimizer), 0.01)
    assert total.full_tensor().isfinite()


def shard_of(x: torch.Tensor) -> torch.Tensor:
    chunks = x.chunk(dist.get_world_size())
    return chunks[dist.get_rank()] if dist.get_rank() < len(chunks) else x[:0]


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    optimizer.zero_grad()
    model(mine(batch(0))).square().mean().backward()
    return model.parameters()


def test_fsdp2_options(ranks4: Ranks) -> None:
    ranks4.run(check_fsdp2_options)


def check_hsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(D, (2, 2), mesh_dim_names=("replicate", "shard"))
    model = make_model()
    fully_shard(model[3], mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, sgd(model))
    same(full(model.state_dict()), alone())


def test_hybrid_sharding(ranks4: Ranks) -> None:
    ranks4.run(check_hsdp)


def check_fsdp1(strategy: str) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, StateDictType

    device = torch.device(D, torch.neuron.current_device())
    model = FullyShardedDataParallel(make_model(), device_id=device, use_orig_params=True, sharding_strategy=ShardingStrategy[strategy])
    train(model, sgd(model))
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        same(full(model.state_dict()), alone())


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_fsdp1(ranks4: Ranks, strategy: str) -> None:
    ranks4.run(check_fsdp1, strategy)


# ---- optimizers ----


def check_zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel as DDP

    model = DDP(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    train(model, optimizer)
    same(full(model.module.state_dict()), alone(make=lambda p: torch.optim.AdamW(p, lr=0.01)), 1e-4)


def test_zero_redundancy_optimizer(ranks4: Ranks) -> None:
    ranks4.run(check_zero)


# ---- DTensor ----


def check_dtensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, zeros
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = init_device_mesh(D, (2, 2), mesh_dim_names=("a", "b"))
    x = torch.arange(48, dtype=torch.float32, device=D).view(6, 8)
    for first in (Replicate(), Shard(0), Shard(1)):
        for second in (Replicate(), Shard(0), Shard(1)):
            tensor = distribute_tensor(x, mesh, [first, second])
            assert torch.equal(tensor.full_tensor(), x)
            for target in ([Replicate(), Shard(1)], [Shard(0), Shard(1)], [Shard(1), Replicate()]):
                assert torch.equal(tensor.redistribute(mesh, target).full_tensor(), x)
    partial = DTensor.from_local(torch.ones(4, device=D), mesh, [Partial(), Partial("avg")])
    assert torch.equal(partial.full_tensor().cpu(), torch.full((4,), 2.0))
    assert torch.equal(partial.redistribute(mesh, [Shard(0), Replicate()]).full_tensor().cpu(), torch.full((4,), 2.0))
    a, b = distribute_tensor(x, mesh, [Shard(0), Shard(1)]), distribute_tensor(x.t().contiguous(), mesh, [Replicate(), Shard(0)])
    with CommDebugMode() as counts:
        product = (a @ b).full_tensor()
    assert counts.get_total_counts() > 0
    torch.testing.assert_close(product, x @ x.t())
    assert zeros(4, 4, device_mesh=mesh, placements=[Shard(0), Shard(1)]).full_tensor().sum().item() == 0
    torch.manual_seed(5)
    random = torch.distributed.tensor.rand(8, 8, device_mesh=mesh, placements=[Shard(0), Shard(1)])
    assert random.full_tensor().unique().numel() == 64  # each rank draws other numbers
    uneven = distribute_tensor(torch.arange(7, device=D), mesh["b"], [Shard(0)])
    assert torch.equal(uneven.full_tensor().cpu(), torch.arange(7))


def test_dtensor(ranks4: Ranks) -> None:
    ranks4.run(check_dtensor)


# ---- checkpoints ----


def save_checkpoint(folder: str, asynchronous: bool) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer)
    weights, state = get_state_dict(model, optimizer)
    if asynchronous:
        saving: Any = dcp.async_save({"model": weights, "optimizer": state}, checkpoint_id=folder)
        saving.result()
    else:
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def load_checkpoint(folder: str) -> dict[str, torch.Tensor]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    if dist.get_world_size() > 1:
        fully_shard(model)
    for p in model.parameters():
        p.detach().zero_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    moments = full({f"moment{i}": s["exp_avg"] for i, s in enumerate(optimizer.state.values())})
    return full(model.state_dict()) | moments


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_checkpoint_of_four_ranks_loads_on_any_number(ranks4: Ranks, ranks2: Ranks, tmp_path: Path, asynchronous: bool) -> None:
    ranks4.run(save_checkpoint, str(tmp_path), asynchronous)
    expected = ranks4.run(load_checkpoint, str(tmp_path))[0]
    assert any(x.abs().max() > 0 for x in expected.values())
    two = ranks2.run(load_checkpoint, str(tmp_path))[0]
    one = Ranks(1)
    try:
        (single,) = one.run(load_checkpoint, str(tmp_path))
    finally:
        one.close()
    for other in (two, single):
        assert other.keys() == expected.keys() and all(torch.equal(other[name], expected[name]) for name in expected)
