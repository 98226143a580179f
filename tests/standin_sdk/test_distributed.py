"""torch.distributed on the Trainium target: ranks with a core each of the stand-in runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.distributed import test_collectives as collectives
from tests.distributed import test_examples as examples
from tests.distributed.test_failures import SEVERAL_HOSTS, run
from tests.distributed.torchrun import torchrun
from tests.distributed.workers import Ranks
from tests.standin_sdk.conftest import environment_of

D = "neuron"
Environment = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def chip(sdk: Path, neffs: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """``chip(device="trn2", runtime="2.34", **more)``: the environment of ranks that share one chip."""

    def environment(device: str = "trn2", runtime: str = "2.34", **more: str) -> dict[str, str]:
        return environment_of(sdk, device, runtime, neffs, tmp_path_factory.mktemp("chip")) | more

    return environment


def ranks_on(environment: dict[str, str], size: int = 2) -> Ranks:
    with mock.patch.dict(os.environ, environment):  # the loader reads LD_LIBRARY_PATH when a process starts
        return Ranks(size)


@pytest.fixture(scope="module")
def chips(chip: Environment) -> Iterator[Ranks]:
    ranks = ranks_on(chip())
    yield ranks
    ranks.close()


def check_cores() -> tuple[str, int, str]:
    """Each rank has the core of its LOCAL_RANK, under the number that it has on the emulated target."""
    rank = dist.get_rank()
    x = torch.ones(3, device=D)
    other = torch.device(D, 1 - rank)
    assert x.device.index == rank == torch.neuron.current_device() and not torch.neuron.get_device_properties(rank).is_emulated
    with pytest.raises(IndexError, match=f"neuron:{1 - rank} is the NeuronCore of another rank"):
        torch.ones(3, device=other)
    assert (x + 1).tolist() == [2, 2, 2]  # a program, on that core
    torch.neuron.synchronize()
    return torch.neuron.get_device_name(rank), torch.neuron.device_count(), os.environ.get("NEURON_RT_VISIBLE_CORES", "")


def test_each_rank_takes_its_own_core(chips: Ranks) -> None:
    assert chips.run(check_cores) == [("Trainium2", 4, "")] * 2


CHECKS: dict[str, tuple[Any, ...]] = {
    "float32": (collectives.check_all_reduce, (torch.float32,), ("SUM", "AVG", "MAX")),
    "bfloat16": (collectives.check_all_reduce, (torch.bfloat16, torch.float16), ("SUM", "MIN")),
    "integers": (collectives.check_all_reduce, (torch.int16, torch.int64), ("SUM", "PRODUCT", "BXOR")),
    "booleans": (collectives.check_booleans,),
    "order": (collectives.check_order,),
    "premul_sum": (collectives.check_premul_sum,),
    "reduce": (collectives.check_reduce_and_scatter,),
    "moves": (collectives.check_moves, torch.float32),
    "moves_bfloat16": (collectives.check_moves, torch.bfloat16),
    "moves_float8": (collectives.check_moves, torch.float8_e4m3fn),
    "uneven": (collectives.check_uneven, 5000),
    "views": (collectives.check_views,),
    "coalesced": (collectives.check_coalesced,),
    "messages": (collectives.check_messages, 20_000),
    "small_messages": (collectives.check_messages, 10),
    "groups": (collectives.check_groups,),
    "objects": (collectives.check_objects,),
    "work": (collectives.check_work,),
    "functional": (collectives.check_functional,),
}


@pytest.mark.parametrize("name", CHECKS)
def test_collectives(chips: Ranks, name: str) -> None:
    chips.run(*CHECKS[name])


def test_several_hosts(chip: Environment) -> None:
    for result in run(SEVERAL_HOSTS + "dist.destroy_process_group()", **chip()):
        assert result.returncode == 0, result.stderr


_EVERYWHERE = [("trn2", "2.34"), ("trn2", "2.30"), ("trn3", "2.34"), ("trn3", "2.30")]
_CASES = [
    pytest.param(name, mode, *where, marks=[] if (name, mode, where) == ("ddp", "eager", _EVERYWHERE[0]) else pytest.mark.full)
    for name in ("ddp", "fsdp2", "tp_fsdp")
    for mode in ("eager", "compiled")
    for where in _EVERYWHERE
    if not (name == "tp_fsdp" and where != _EVERYWHERE[0])
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "mode", "device", "runtime"), _CASES)
def test_training_is_as_one_process(chip: Environment, name: str, mode: str, device: str, runtime: str) -> None:
    ranks = ranks_on(chip(device, runtime), 4 if name == "tp_fsdp" else 2)
    try:
        if mode == "eager":
            ranks.run(examples.check, name, 20, timeout=800)
        else:
            ranks.run(examples.check_compiled, name, timeout=800)
    finally:
        ranks.close()


@pytest.mark.full
def test_torchrun(chip: Environment) -> None:
    out = torchrun("--nproc-per-node=2", examples.EXAMPLES / "ddp.py", "--check", "--steps=3", **chip())
    assert "as in one process" in "".join(out)


def test_a_rank_that_is_killed_is_named(chip: Environment) -> None:
    body = """
x = start()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(x)
    torch.neuron.synchronize()
except Exception as error:
    print(error)
    os._exit(3)
"""
    first, second = run(body, **chip())
    assert second.returncode == -9
    assert first.returncode == 3 and "rank 1 (process" in first.stdout and "has ended" in first.stdout


@pytest.mark.parametrize("function", ["nrta_tensor_read", "nrta_tensor_write"])
def test_a_copy_that_fails_fails_the_group(chip: Environment, function: str) -> None:
    body = """
if rank == 1:
    os.environ["STANDIN_NRT_COMPLETION_FAULTS"] = "FUNCTION:2=6"
x = start()
try:
    for _ in range(10):
        dist.all_reduce(x)
        torch.neuron.synchronize()
except Exception as error:
    print(error)
    os._exit(3)
"""
    results = run(body.replace("FUNCTION", function), **chip())
    assert [result.returncode for result in results] == [3, 3], [result.stderr for result in results]
    assert "NRT_HW_ERROR" in results[1].stdout and "has aborted the group" in results[0].stdout
