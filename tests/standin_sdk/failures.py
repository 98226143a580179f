"""Faults of the runtime on demand, and what users see of them. See conftest.py and libnrt/faults.h."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from tests.standin_sdk.statuses import STATUSES, TERMINAL


def _open() -> int:
    return len(os.listdir("/proc/self/fd"))


def _raises(status: int, call: Callable[[], Any]) -> None:
    name, kind = STATUSES[status]
    wanted = {"memory": torch.OutOfMemoryError, "lost": torch.AcceleratorError, "index": IndexError, "error": RuntimeError}[kind]
    try:
        call()
    except wanted as error:
        assert type(error) is wanted, type(error)
        if kind != "memory":  # PyTorch's own message of the allocator
            assert f"NRT Error {name}({status}): " in str(error), error
    else:
        raise AssertionError(f"{name} was not raised")


def _settled() -> tuple[int, int, int]:
    """Descriptors of this process, device memory of tensors, device memory that the runtime has given."""
    torch.neuron.synchronize()
    free, total = torch.neuron.mem_get_info()
    return _open(), torch.neuron.memory_allocated(), total - free


def executions(where: str) -> None:
    """Every status, as what scheduling an execution gives and as how an execution ends: raised once, and later work runs."""
    x = torch.zeros(4).to("neuron")

    def step() -> None:
        torch.neg(x, out=x)
        torch.neuron.synchronize()

    step()  # execution 1
    before = _settled()
    for status in STATUSES:
        if status in TERMINAL or (where == "schedule" and STATUSES[status][0] == "NRT_QUEUE_FULL"):
            continue
        _raises(status, step)
        step()
    assert x.tolist() == [0.0] * 4
    assert _settled() == before
    _raises(TERMINAL[0], step)
    _raises(TERMINAL[0], step)  # nothing more runs in this process, and nothing hangs
    print("lost as documented")


def execution_rules(where: str) -> str:
    """The faults of :func:`executions`: calls 2, 4, 6... fail."""
    rules, call = [], 2
    for status in STATUSES:
        if status in TERMINAL or (where == "schedule" and STATUSES[status][0] == "NRT_QUEUE_FULL"):
            continue
        rules.append(f"nrta_execute_schedule:{call}={status}")
        call += 2
    return ";".join([*rules, f"nrta_execute_schedule:{call}={TERMINAL[0]}"])


def loads() -> None:
    """Every status of nrt_load: raised by the call that needs the program. Nothing of it stays, and the program can be loaded later.

    NRT_RESOURCE is raised when it comes again after the allocator's cache has been given back.
    """
    x = torch.zeros(4).to("neuron")
    before = None
    for status in STATUSES:
        _raises(status, lambda: torch.neg(x, out=x))
        now = _settled()
        before = before or now
        assert now == before
    torch.neg(x, out=x)
    assert x.tolist() == [0.0] * 4


def load_rules() -> str:
    calls = [status for status in STATUSES for _ in range(2 if STATUSES[status][0] == "NRT_RESOURCE" else 1)]
    return ";".join(f"nrt_load:{call}={status}" for call, status in enumerate(calls, 1))


LOADS_IN_FULL_MEMORY = "nrt_load:1=4;nrt_load:3=4"


def loads_in_full_memory() -> None:
    """A program that HBM has no room for is loaded once the allocator's cache went back; a graph's first run stays one launch."""
    from torch_neuronx.compiler.driver import counters

    x = torch.eye(4).to("neuron")

    def cached() -> int:
        return torch.neuron.memory_reserved() - torch.neuron.memory_allocated()

    def fill() -> None:
        torch.empty(64 << 20, dtype=torch.uint8, device="neuron")
        assert cached() >= 64 << 20

    fill()
    assert torch.neg(x, out=x).cpu()[0].tolist() == [-1, 0, 0, 0]  # load 1 fails, 2 does not
    assert cached() < 64 << 20

    def function(x: torch.Tensor) -> torch.Tensor:
        return ((x @ x + 1) @ x).relu()

    compiled = torch.compile(function, backend="neuron")
    fill()
    before = counters["compiles"] + counters["hits"]
    assert compiled(x).tolist() == function(x.cpu()).tolist()
    assert counters["compiles"] + counters["hits"] == before + 1
    assert cached() < 64 << 20
    assert compiled(x * 2).tolist() == function(x.cpu() * 2).tolist()


def copies() -> None:
    """Every status of a copy in each direction."""
    host = torch.arange(4.0)
    x = host.to("neuron")
    x.cpu()
    before = _settled()

    def to_device() -> None:
        x.copy_(host)
        torch.neuron.synchronize()

    for status in STATUSES:
        if status in TERMINAL or STATUSES[status][0] == "NRT_QUEUE_FULL":
            continue
        _raises(status, to_device)
        to_device()
        _raises(status, x.cpu)
        assert x.cpu().equal(host)
    assert _settled() == before


def copy_rules() -> str:
    rules = []
    wanted = [status for status in STATUSES if status not in TERMINAL and STATUSES[status][0] != "NRT_QUEUE_FULL"]
    for index, status in enumerate(wanted):
        rules += [f"nrta_tensor_write:{2 * index + 2}={status}", f"nrta_tensor_read:{2 * index + 2}={status}"]
    return ";".join(rules)


def out_of_memory() -> None:
    """HBM that is full is torch.OutOfMemoryError, and memory that is freed is there again."""
    _, total = torch.neuron.mem_get_info()

    def refused(bytes: int, why: str) -> None:
        try:
            torch.empty(bytes, dtype=torch.uint8, device="neuron")
        except torch.OutOfMemoryError as error:
            assert why in str(error), error
        else:
            raise AssertionError("more than the device has")

    refused(2 * total, "the request alone is larger than the device")
    held = [torch.empty(total // 4, dtype=torch.uint8, device="neuron") for _ in range(3)]
    refused(total // 2, "the device's memory is full")
    del held
    big = torch.empty(total * 3 // 4, dtype=torch.uint8, device="neuron")  # the cached segments go back first
    del big


def queue_full() -> None:
    """Back pressure is never seen: more executions than the queue holds, and a queue that refuses some."""
    x = torch.zeros(8, device="neuron")
    for _ in range(40):
        torch.neg(x, out=x)
    torch.neuron.synchronize()
    assert x.tolist() == [0.0] * 8


def nan() -> None:
    x = torch.zeros(4, device="neuron")
    _raises(1003, lambda: ((x / x), torch.neuron.synchronize()))
    assert (x + 1).tolist() == [1.0] * 4


def taken() -> None:
    """Another process has the cores: said with the remedy. ``STANDIN_NRT_DIR`` is that of a process that holds them."""
    try:
        torch.zeros(1, device="neuron")
    except RuntimeError as error:
        assert "NRT Error NRT_FAILURE(1): starting the Neuron runtime" in str(error) and "neuron-ls" in str(error), error
    else:
        raise AssertionError("two processes have the same cores")


def hold() -> None:
    import sys

    torch.zeros(1, device="neuron")
    print("held", flush=True)
    sys.stdin.read()
