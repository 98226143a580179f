"""What the others see when a rank dies, hangs, or calls something else; and what is left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.torchrun import torchrun
from tests.distributed.workers import environment_of, make_store

ROOT = Path(__file__).resolve().parents[2]

PROLOGUE = """
import os, select, signal, sys, time, datetime, torch
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def start(seconds=100):
    dist.init_process_group("neuron", timeout=datetime.timedelta(seconds=seconds))
    x = torch.ones(100_000, device="neuron")
    dist.all_reduce(x)
    torch.neuron.synchronize()
    return x
# For ranks that shall wait for what another one does, however long it takes that on a busy machine.
def tell(what):
    dist.distributed_c10d._get_default_store().set(what, "")
def hear(what):
    dist.distributed_c10d._get_default_store().wait([what], datetime.timedelta(seconds=100))
"""


def run(body: str, size: int = 2, timeout: float = 240, **environment: str) -> list[subprocess.CompletedProcess[str]]:
    """One script on ``size`` ranks, each an own interpreter."""
    store = make_store()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + body],
            env={**os.environ, **environment_of(rank, size, store), **environment},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    results = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            raise
        results.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return results


WAITS = """
x = start()
named = {line.split("/dev/shm/")[1].split()[0] for line in open("/proc/self/maps") if "/dev/shm/" in line}
sys.stdout.write(" ".join(sorted(named)) + "\\n")
sys.stdout.flush()
if rank == size - 1:
    DIES
began = time.monotonic()
try:
    dist.all_reduce(x)
    torch.neuron.synchronize()
except Exception as error:
    print(type(error).__name__, round(time.monotonic() - began, 1), error)
    os._exit(3)
"""


@pytest.mark.parametrize(
    "how", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(1)", "raise ValueError('a bug')"], ids=["kill", "exit", "raise"]
)
def test_a_rank_that_ends_fails_the_others_within_seconds_and_leaves_nothing(how: str) -> None:
    results = run(WAITS.replace("DIES", how), size=3)
    *others, gone = results
    assert gone.returncode != 0
    for result in others:
        assert result.returncode == 3, result.stderr
        kind, seconds, text = result.stdout.splitlines()[1].split(" ", 2)
        assert kind == "DistBackendError"
        assert float(seconds) < 30  # 0.1 where nothing else runs; the group's time-out is 100
        assert re.search(
            r"ALLREDUCE SUM #1 of 390.6 KiB float32 at <string>:\d+ .*rank 2 \(process \d+\), which last entered ALLREDUCE SUM #0", text
        )
    # Only what these ranks had mapped: other files there are those of whatever else runs on the machine.
    mapped = {name for result in results for name in result.stdout.splitlines()[0].split()}
    assert not mapped & set(os.listdir("/dev/shm"))


def test_a_rank_that_hangs_is_named_when_the_time_is_over() -> None:
    body = """
x = start()
if rank == 1:
    hear("told")
    os._exit(0)
dist.group.WORLD._get_backend(torch.device("neuron"))._set_default_timeout(datetime.timedelta(seconds=3))
began = time.monotonic()
try:
    dist.all_reduce(x)
    torch.neuron.synchronize()
except Exception as error:
    print(type(error).__name__, round(time.monotonic() - began, 1), error)
try:
    dist.all_reduce(x)
except Exception as error:
    print("again", error)
from torch_neuronx.distributed import flight_recorder
last = flight_recorder()[-1]
print(last["operation"], last["state"], last["group"])
tell("told")
"""
    first, _ = run(body)
    assert first.returncode == 0, first.stderr
    raised, again, last = first.stdout.splitlines()
    kind, seconds, text = raised.split(" ", 2)
    assert kind == "DistBackendError" and 2.5 < float(seconds) < 30
    assert "timed out on rank 0: it waits for rank 1 (process" in text and "last entered ALLREDUCE SUM #0" in text
    assert again.startswith("again") and "timed out" in again
    assert last == "ALLREDUCE SUM failed default_pg"


def test_ranks_that_call_different_collectives_are_told_who_called_what() -> None:
    body = """
x = start()
try:
    dist.all_reduce(x) if rank == 0 else dist.broadcast(x, 0)
    torch.neuron.synchronize()
except Exception as error:
    print(type(error).__name__, error)
    os._exit(3)
"""
    first, second = run(body)
    assert "rank 0 is in ALLREDUCE SUM #1" in first.stdout and "but rank 1 in BROADCAST #1" in first.stdout
    assert "rank 1 is in BROADCAST #1" in second.stdout


def test_other_sizes_and_dtypes_are_errors_too() -> None:
    body = """
x = start()
try:
    dist.all_reduce(torch.ones(10 + rank, device="neuron"))
    torch.neuron.synchronize()
except Exception as error:
    print(error)
    os._exit(3)
"""
    for result in run(body):
        assert result.returncode == 3 and "do not call the same collective" in result.stdout


def test_a_wait_with_a_time_limit_names_who_is_missing() -> None:
    body = """
x = start()
if rank == 0:
    work = dist.all_reduce(x, async_op=True)
    try:
        work.wait(datetime.timedelta(seconds=1))
    except Exception as error:
        print(error)
    tell("told")
    work.wait()
    torch.neuron.synchronize()
else:
    hear("told")
    dist.all_reduce(x)
dist.destroy_process_group()
"""
    first, second = run(body)
    assert "was not done within 1000 ms: it waits for rank 1" in first.stdout
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr


def test_abort_ends_the_others_too() -> None:
    body = """
x = start()
if rank == 0:
    store = dist.distributed_c10d._get_default_store()
    store.wait(["waiting"], datetime.timedelta(seconds=100))
    dist.distributed_c10d._abort_process_group()
    store.wait(["told"], datetime.timedelta(seconds=100))
    os._exit(0)
try:
    dist.all_reduce(x)  # which does not wait on the host
    tell("waiting")
    torch.neuron.synchronize()
except Exception as error:
    print(error, flush=True)
    tell("told")
    os._exit(3)
"""
    _, second = run(body)
    assert second.returncode == 3 and "has aborted the group" in second.stdout


def test_more_ranks_than_cores_is_refused_with_the_settings_named() -> None:
    for result in run("start()", size=3, NEURON_RT_NUM_CORES="2"):
        assert result.returncode != 0
        assert "TORCH_NEURONX_EMULATED_INSTANCE" in result.stderr


SEVERAL_HOSTS = """
os.environ["TORCH_NEURONX_EMULATED_HOST"] = f"host{rank % 2}"
x = start()
assert not dist.group.WORLD._get_backend(torch.device("neuron")).on_one_host
def check(x, value):
    assert (x.cpu() == value).all(), (x, value)
check(x, size)
y = torch.full((10,), float(rank), device="neuron")
dist.all_reduce(y, dist.ReduceOp.AVG)
check(y, (size - 1) / 2)
z = torch.empty(size, device="neuron")
dist.all_gather_into_tensor(z, torch.full((1,), float(rank), device="neuron"))
check(z, torch.arange(size).float())
dist.reduce_scatter_tensor(y[:2], torch.ones(2 * size, device="neuron"))
check(y[:2], size)
dist.broadcast(y.fill_(rank), 1)
check(y, 1)
if rank == 0:
    dist.send(y + 5, 1)
elif rank == 1:
    dist.recv(y, 0)
    check(y, 6)
dist.all_to_all_single(z, torch.arange(size, device="neuron").float() + 10 * rank)
check(z, torch.arange(size) * 10.0 + rank)
pairs = [[torch.empty(2, device="neuron"), torch.empty(3, device="neuron")] for _ in range(size)]
dist.all_gather_coalesced(pairs, [torch.full((n,), 10.0 * rank + n, device="neuron") for n in (2, 3)])
for source, tensors in enumerate(pairs):
    for tensor, n in zip(tensors, (2, 3)):
        check(tensor, 10 * source + n)
mean = torch.full((1000, 1000), 1e-3, device="neuron")
late = torch.ones(1000, 1000, device="neuron")
for _ in range(5):
    late = late @ mean  # not computed yet when the others' copy for Gloo is made
late = late + rank
dist.reduce(late, 0)
if rank == 0:
    torch.testing.assert_close(late.cpu(), torch.full((1000, 1000), size + size * (size - 1) / 2))
dist.barrier()
objects = [None] * size
dist.all_gather_object(objects, rank)
assert objects == list(range(size))
"""
SPARSE = """
sparse = torch.sparse_coo_tensor(torch.arange(rank + 1)[None], torch.ones(rank + 1), (size,)).to("neuron")
dist.all_reduce(sparse)
check(sparse.to_dense(), torch.arange(size, 0, -1).float())
dist.destroy_process_group()
"""


def test_ranks_on_several_hosts_go_through_gloo() -> None:
    for result in run(SEVERAL_HOSTS + SPARSE, size=3):
        assert result.returncode == 0, result.stderr


def test_pending_work_does_not_keep_a_process_from_ending() -> None:
    body = """
x = start()
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    dist.all_reduce(x, async_op=True)
    store.set("process", str(os.getpid()))
else:
    ended = os.pidfd_open(int(store.get("process")))
    os._exit(0 if select.select([ended], [], [], 100)[0] else 1)
"""
    first, second = run(body)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr


@pytest.mark.full
def test_torchrun_counts_the_cores() -> None:
    script = ROOT / "tests" / "distributed" / "print_rank.py"
    out = torchrun("--nproc-per-node=neuron", script, NEURON_RT_NUM_CORES="2")
    assert [line for rank in out for line in rank.splitlines() if line.startswith("rank")] == ["rank 0 of 2 on 0", "rank 1 of 2 on 1"]


def test_two_ranks_on_one_core_are_refused() -> None:
    body = """
try:
    start()
except Exception as error:
    print(error)
    os._exit(3)
"""
    for result in run(body, LOCAL_RANK=""):
        assert result.returncode == 3 and "both use NeuronCore 0" in result.stdout and "set_device" in result.stdout


RAISES_WITH_WORK_QUEUED = """
start()
mean, y = torch.full((1500, 1500), 1 / 1500, device="neuron"), torch.ones(1500, 1500, device="neuron")
if rank == 0:
    for _ in range(12):
        y = y @ mean + 1
    work = dist.all_reduce(y, async_op=True)
    raise KeyError("mine")
try:
    dist.all_reduce(y)
    print("got", y.sum().item() / y.numel())
except dist.DistBackendError:
    print("told")
"""


def test_a_rank_that_raises_sends_nothing_that_it_has_not_computed() -> None:
    """At its end it drops no launch that a collective waits for: the others get the right values, or an exception (on a busy machine)."""
    raised, other = run(RAISES_WITH_WORK_QUEUED)
    assert raised.returncode == 1 and "KeyError: 'mine'" in raised.stderr
    assert other.stdout.strip() == "told" or float(other.stdout.split()[1]) == pytest.approx(14, rel=1e-3), other.stdout + other.stderr
