"""Compilations beside the script that wants them: a queue, and daemon threads. See docs/dev/trainium.md, "Compiling in the background".

Not ``concurrent.futures``: its threads are waited for when the interpreter ends, and a compilation may take an hour.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable

from torch_neuronx.compiler.driver import Compiled, compile_jobs, stop_compilers

_JOIN = 5.0  # seconds that a thread is given at exit to clear its workspace


class _Queue:
    """Jobs in the order in which they came, at most ``compile_jobs()`` at a time."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: deque[Callable[[], None]] = deque()
        self.unfinished = 0  # queued or running
        self.idle = 0  # threads that wait for a job
        self.threads: list[threading.Thread] = []
        self.closed = False

    def add(self, job: Callable[[], None]) -> None:
        with self.changed:
            if self.closed:
                return
            self.jobs.append(job)
            self.unfinished += 1
            if self.idle < len(self.jobs) and len(self.threads) < compile_jobs():
                thread = threading.Thread(target=self._work, name="neuron-compile-background", daemon=True)
                self.threads.append(thread)
                thread.start()
            self.changed.notify_all()

    def _work(self) -> None:
        while True:
            with self.changed:
                self.idle += 1
                self.changed.wait_for(lambda: self.jobs or self.closed)
                self.idle -= 1
                if self.closed:
                    return
                job = self.jobs.popleft()
            try:
                job()
            finally:
                with self.changed:
                    self.unfinished -= 1
                    self.changed.notify_all()

    def wait(self, timeout: float | None) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.unfinished == 0, timeout)

    def close(self) -> None:
        if not self.threads:
            return  # nothing was ever compiled here, and what the script's own threads compile is theirs
        with self.changed:
            self.closed = True
            self.jobs.clear()
            self.changed.notify_all()
        stop_compilers()
        end = time.monotonic() + _JOIN
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))


_queue = _Queue()
atexit.register(_queue.close)


def submit(compile: Callable[[], Compiled], done: Callable[[bytes | BaseException], None]) -> None:
    """Runs ``compile`` on a thread, and gives its NEFF or its exception to ``done`` there. Nothing is promised once the process ends."""

    def job() -> None:
        try:
            outcome: bytes | BaseException = compile().neff
        except BaseException as error:  # whatever it is, the launch that needs the program raises it
            outcome = error.with_traceback(None)
        done(outcome)

    _queue.add(job)


def wait(timeout: float | None = None) -> bool:
    """Waits until all programs that were met under TORCH_NEURONX_COMPILE=background are compiled, or ``timeout`` seconds.

    False when some are not. What the compiler refuses is raised where the program is launched, not here.
    """
    return _queue.wait(timeout)
