"""Processes that stay: each is a rank of one process group, and runs the functions that tests send to all of them."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_GRACE = 30  # seconds that ranks get when another has failed: they may wait for it


def make_store() -> dist.TCPStore:
    """A store for ranks to meet at, as torchrun has one: its port is bound, so nobody else can get it, and it outlives each rank."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def environment_of(rank: int, size: int, store: dist.TCPStore) -> dict[str, str]:
    """What torchrun would tell a rank whose ``init_process_group`` shall use ``store``, of this process."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }


def _serve(rank: int, orders: Connection, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    if environment.get("TEST_LATE_RANK") == str(rank):
        time.sleep(1)
    bound = torch.device("neuron", rank) if "TEST_BOUND" in environment else None
    dist.init_process_group(environment.get("TEST_BACKEND", "cpu:gloo,neuron:neuron") or None, device_id=bound)
    while (order := orders.recv()) is not None:
        function, arguments = order
        try:
            orders.send((True, function(*arguments)))
        except BaseException:
            orders.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """``size`` ranks with the default process group; ``environment`` is set in each before its first use of the device.

    TEST_BACKEND names the backend ("": none), TEST_BOUND=1 binds the group to the rank's device,
    TEST_LATE_RANK names a rank that comes last.
    """

    def __init__(self, size: int, store: dist.TCPStore | None = None, **environment: str) -> None:
        self.size = size
        context = mp.get_context("spawn")
        self._store = store or make_store()
        self._pipes, self._processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            settings = environment_of(rank, size, self._store) | environment
            process = context.Process(target=_serve, args=(rank, theirs, settings), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout: float = 240) -> list[Any]:
        """What ``function(*arguments)``, of a module that ranks can import, returns on each rank. Raises the first failure's text."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        until = time.monotonic() + timeout
        results: list[Any] = [None] * self.size
        failures: list[str] = []
        waiting: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while waiting:
            ready = wait(waiting, max(until - time.monotonic(), 0))
            if not ready:
                self.kill()
                text = "\n".join(failures) or "none"
                raise TimeoutError(f"ranks {sorted(waiting.values())} are not done with {function.__name__}; failures so far: {text}")
            for rank in [waiting.pop(pipe) for pipe in ready]:
                good, results[rank] = self._pipes[rank].recv()
                if not good:
                    failures.append(f"rank {rank}:\n{results[rank]}")
                    until = min(until, time.monotonic() + _GRACE)
        if failures:
            raise AssertionError("\n".join(failures))
        return results

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def close(self) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except BrokenPipeError:
                print("a rank has ended before", file=sys.stderr)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
