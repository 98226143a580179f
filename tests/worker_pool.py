"""Worker processes for checks over PyTorch's op table: an op that crashes or hangs costs one variant, not the run."""

import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

Job = tuple[str, str]  # op, dtype


def _serve(connection: Connection, check: str, threads: int) -> None:
    """Body of a worker: takes (op, dtype), gives a result, until None."""
    import torch

    torch.set_num_threads(threads)
    module, name = check.split(":")
    function = getattr(importlib.import_module(module), name)
    connection.send("ready")
    while (job := connection.recv()) is not None:
        connection.send(function(*job).as_dict())


class Worker:
    """A process that runs ``body(connection, *args)``."""

    def __init__(self, body: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=body, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()
        self.ready = False

    def stop(self) -> None:
        self.connection.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def receive(self) -> Any:
        """What it sent; ("timeout" | "crash", why) when it has sent nothing, which ends it, or has died."""
        if not self.connection.poll():
            self.process.kill()
            return ("timeout", "no answer within the time limit")
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(timeout=5)
            return ("crash", f"exit code {self.process.exitcode}")


class _Checker(Worker):
    job: Job | None = None


def _lost(job: Job, status: str, detail: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("samples", "failed", "excluded", "gradients"), 0)
    return {"op": job[0], "dtype": job[1], "status": status, **nothing, "seconds": 0.0, "failures": [detail]}


def run_all(
    jobs: Iterable[Job], workers: int = 2, limit: float = 300, check: str = "tests.opinfo.check:check_variant"
) -> Iterator[dict[str, Any]]:
    """Yields a result for each job, in order of completion.

    ``check``: "module:function" of (op, dtype), whose result has ``as_dict()``. ``limit``: seconds for one variant, then its worker is
    killed and replaced.

    Raises RuntimeError when a worker dies before its first job: then the device or the op table cannot even be imported.
    """
    os.environ.setdefault("TORCH_NEURONX_CHECK_META", "1")
    os.environ.setdefault("TORCH_NEURONX_FALLBACK", "error")
    pending = list(jobs)[::-1]
    threads = max(1, (os.cpu_count() or 1) // workers)
    running = [_Checker(_serve, check, threads) for _ in range(min(workers, len(pending)))]
    try:
        while running:
            for worker in _answering(running, limit):
                message = worker.receive()
                if isinstance(message, tuple) and not worker.ready:
                    raise RuntimeError("a worker died at start: run `python -c 'import torch, torch.neuron'` to see why")
                worker.ready = True
                if worker.job is not None:
                    job, worker.job = worker.job, None
                    yield message if isinstance(message, dict) else _lost(job, *message)
                if not isinstance(message, (dict, str)):
                    worker.stop()
                    running.remove(worker)
                    if pending:
                        running.append(_Checker(_serve, check, threads))
                elif pending:
                    worker.job = pending.pop()
                    worker.connection.send(worker.job)
                else:
                    worker.connection.send(None)
                    worker.stop()
                    running.remove(worker)
    finally:
        for worker in running:
            worker.process.kill()


def _answering(running: list[_Checker], limit: float) -> list[_Checker]:
    """Workers that have something to say; when none has within ``limit`` seconds, all that are busy are taken for hanging."""
    ready = wait([worker.connection for worker in running], timeout=limit)
    return [worker for worker in running if worker.connection in ready] or list(running)
