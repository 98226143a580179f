"""How groups are made: default backend, splitting, shrinking, meshes by name, the device of a rank."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.distributed.torchrun import torchrun
from tests.distributed.workers import Ranks, make_store
from torch_neuronx.distributed import monitored_barrier

ROOT = Path(__file__).resolve().parents[2]
D = "neuron"


def total(group: dist.ProcessGroup) -> float:
    x = torch.full((1,), float(dist.get_rank()), device=D)
    dist.all_reduce(x, group=group)
    return x.item()


def check_split() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [list(range(size // 2)), list(range(size // 2, size))]
    world = dist.group.WORLD
    assert world is not None
    backend = world._get_backend(torch.device(D))
    assert backend.supports_splitting and backend.supports_coalescing and backend.name() == "neuron"
    if world.bound_device_id is not None:
        mine = dist.split_group(world, parts)
        assert total(mine) == sum(parts[rank * 2 // size])
        dist.destroy_process_group(mine)
    local = [rank // 2 * 2, rank // 2 * 2 + 1]
    pair = dist.new_group(local, use_local_synchronization=True)
    assert total(pair) == sum(local)
    groups, _ = dist.new_subgroups(2)
    assert total(groups) == sum(local)


def test_local_groups(ranks4: Ranks) -> None:
    ranks4.run(check_split)


def test_split() -> None:
    ranks = Ranks(4, TEST_BACKEND="neuron", TEST_BOUND="1")
    try:
        ranks.run(check_split)
    finally:
        ranks.close()


def check_mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(D, (2, 2), mesh_dim_names=("data", "model"))
    assert mesh.device_type == D and mesh["model"].size() == 2
    row = dist.get_rank() // 2 * 2
    assert total(mesh.get_group("model")) == 2 * row + 1
    assert total(mesh["data", "model"]._flatten("both").get_group()) == 6


def test_mesh_by_name(ranks4: Ranks) -> None:
    ranks4.run(check_mesh)


def make_again(times: int) -> None:
    for i in range(times):
        dist.destroy_process_group()
        if dist_rank() == i % 2:
            time.sleep(0.1)
        dist.init_process_group("neuron")
        assert total(dist.group.WORLD) == 1  # type: ignore[arg-type]


def dist_rank() -> int:
    return int(os.environ["RANK"])


def test_group_is_made_again_under_its_old_name() -> None:
    ranks = Ranks(2, TEST_BACKEND="neuron")
    try:
        ranks.run(make_again, 4)
    finally:
        ranks.close()


@pytest.mark.parametrize("late", [0, 1])
def test_store_with_what_killed_ranks_wrote(late: int) -> None:
    """torchrun keeps its store when it starts ranks again."""
    store = make_store()
    for attempt in range(2):
        ranks = Ranks(2, store, TEST_BACKEND="neuron", **({"TEST_LATE_RANK": str(late)} if attempt else {}))
        try:
            assert ranks.run(check_device) == [0, 1]
        finally:
            ranks.kill()


def test_missing_rank_is_named() -> None:
    with pytest.raises(dist.DistBackendError, match=r"rank 0 has waited 0\.2 s, and rank\(s\) 1, 2 did not join"):
        dist.init_process_group("neuron", store=dist.HashStore(), rank=0, world_size=3, timeout=timedelta(seconds=0.2))
    assert not dist.is_initialized()


def check_device() -> int:
    x = torch.ones(1, device=D)
    dist.all_reduce(x)
    return int(x.device.index)


def test_each_rank_uses_the_core_of_its_local_rank(ranks4: Ranks) -> None:
    assert ranks4.run(check_device) == [0, 1, 2, 3]


def check_default() -> str:
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to(D))  # asks for the group's default backend
    return str(dist.get_backend_config())


def test_the_default_backend_is_neuron() -> None:
    ranks = Ranks(2, TEST_BACKEND="")
    try:
        assert ranks.run(check_default) == ["neuron:neuron"] * 2
    finally:
        ranks.close()


def check_bound() -> None:
    dist.barrier(device_ids=[dist.get_rank()])
    dist.monitored_barrier(dist.new_group(backend="gloo"))


def test_barriers(ranks2: Ranks) -> None:
    ranks2.run(check_bound)


def check_monitored(message: str) -> None:
    monitored_barrier()
    monitored_barrier(timeout=100, wait_all_ranks=True)
    group = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=message):
            monitored_barrier(group, timeout=timedelta(seconds=0.5))


@pytest.mark.parametrize(
    ("backend", "message"),
    [("neuron", "BARRIER.*it waits for rank 1"), ("cpu:gloo,neuron:neuron", "Rank 1 failed to pass monitoredBarrier")],
)
def test_a_monitored_barrier_names_who_did_not_come(backend: str, message: str) -> None:
    ranks = Ranks(2, TEST_BACKEND=backend)
    try:
        ranks.run(check_monitored, message)
    finally:
        ranks.close()


def test_documented_script_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "distributed.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    script = tmp_path / "script.py"
    script.write_text(blocks[0].replace("dist.destroy_process_group()", blocks[1] + "dist.destroy_process_group()"))
    for rank, out in enumerate(torchrun("--nproc-per-node=2", script)):
        assert f"{rank} [2.0, 2.0, 2.0, 2.0]" in out and "ALLREDUCE SUM completed" in out


@pytest.mark.parametrize("value", ["abc", "-1"])
def test_a_bad_link_time_is_refused(value: str, run_python: object) -> None:
    code = """
import os, torch, torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("neuron", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1, device="neuron"))
"""
    done = run_python(code, TORCH_NEURONX_EMULATED_LINK_US=value)  # type: ignore[operator]
    assert done.returncode != 0 and "TORCH_NEURONX_EMULATED_LINK_US" in done.stderr
