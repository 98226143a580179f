"""Worker processes for the tests: a crash or a hang costs one test, not the run."""

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.worker_pool import Worker

from .framework import DEVICES, Outcome, Test

START_LIMIT = 180.0  # seconds for a worker to import the databases


def _main(connection: Connection, threads: int) -> None:
    """Body of a worker process. The tests run in a thread because PyTorch's sample iterators call ``inspect.stack()`` for each sample,
    which takes 30 ms when a frame comes from no file, as the main thread's first does (``python -c``)."""
    thread = threading.Thread(target=_serve, args=(connection, threads))
    thread.start()
    thread.join()


def _serve(connection: Connection, threads: int) -> None:
    """Takes a Test, answers with an Outcome for each device, until None. Chatter of the tests goes nowhere."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import torch

    torch.set_num_threads(threads)
    from .framework import run

    connection.send("ready")
    while (test := connection.recv()) is not None:
        for device in DEVICES:
            connection.send(run(test, device))


def list_tests(suites: list[str]) -> list[Test]:
    """Every test of these suites. Read in a process of its own: the databases take much memory, and importing them changes global state.

    Raises RuntimeError with the output of that process when a suite cannot be imported or instantiated.
    """
    tests = f"(test for suite in {suites!r} for test in tests_of(suite))"
    code = f"from tests.upstream.framework import tests_of; [print('TEST', t.suite, t.cls, t.method) for t in {tests}]"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=_environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the suites {' '.join(suites)} cannot be read:\n{done.stderr[-2000:]}")
    lines = [line.split(" ", 3) for line in done.stdout.splitlines() if line.startswith("TEST ")]
    return [Test(*words[1:]) for words in lines]


def _environment() -> dict[str, str]:
    """Strict: nothing runs on the host unnoticed, and all cached metadata is compared with the real one."""
    os.environ.setdefault("TORCH_NEURONX_CHECK_META", "1")
    os.environ.setdefault("TORCH_NEURONX_FALLBACK", "error")
    return dict(os.environ)


class _Worker(Worker):
    def __init__(self, threads: int) -> None:
        super().__init__(_main, threads)
        self.test: Test | None = None
        self.outcomes: dict[str, Outcome] = {}
        self.deadline = time.monotonic() + START_LIMIT

    def give(self, test: Test | None, limit: float) -> None:
        self.test, self.outcomes = test, {}
        self.deadline = time.monotonic() + limit
        self.connection.send(test)

    def receive(self) -> Outcome | str:
        """An Outcome or "ready"; of a dead or late worker, the Outcome that says so."""
        message = super().receive()
        return Outcome(*message) if isinstance(message, tuple) else message


def run_all(tests: Iterable[Test], workers: int = 2, limit: float = 90) -> Iterator[tuple[Test, dict[str, Outcome]]]:
    """Yields each test with its outcome per device, in order of completion. ``limit``: seconds for one test on one device.

    Where the CPU's run crashes, ``neuron`` is not tried. Raises RuntimeError when a worker dies before its first test.
    """
    _environment()
    pending = deque(tests)
    threads = max(1, (os.cpu_count() or 1) // workers)
    running = [_Worker(threads) for _ in range(min(workers, len(pending)))]
    try:
        while running:
            for worker in _due(running):
                message = worker.receive()
                lost = isinstance(message, Outcome) and message.status in ("crash", "timeout")
                if lost and not worker.ready:
                    raise RuntimeError(f"a worker died at start ({message}): run `python -c 'import torch, torch.neuron'` to see why")
                worker.ready = True
                if isinstance(message, Outcome) and worker.test is not None:
                    worker.outcomes[DEVICES[len(worker.outcomes)]] = message
                    worker.deadline = time.monotonic() + limit
                    if lost or len(worker.outcomes) == len(DEVICES):
                        yield worker.test, worker.outcomes
                    else:
                        continue
                if lost:
                    worker.stop()
                    running.remove(worker)
                    if pending:
                        running.append(_Worker(threads))
                elif pending:
                    worker.give(pending.popleft(), limit)
                else:
                    worker.give(None, limit)
                    worker.stop()
                    running.remove(worker)
    finally:
        for worker in running:
            worker.process.kill()


def _due(running: list[_Worker]) -> list[Any]:
    """Workers that have something to say or are past their time."""
    until = min(worker.deadline for worker in running)
    answering = wait([worker.connection for worker in running], timeout=max(0.0, until - time.monotonic()))
    now = time.monotonic()
    return [worker for worker in running if worker.connection in answering or worker.deadline <= now]
