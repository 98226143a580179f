"""Host threads in tests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def on_threads(work: Callable[[int], None], count: int = 4, seconds: float = 120) -> None:
    """Runs ``work(0)`` to ``work(count - 1)``, each on a thread of its own, and raises what one of them raised.

    Raises TimeoutError when they have not ended after ``seconds``; a hanging thread then holds up the process's end, which pytest's time
    limit cuts short.
    """
    pool = ThreadPoolExecutor(count)
    try:
        for _ in pool.map(work, range(count), timeout=seconds):
            pass
    finally:
        pool.shutdown(wait=False)
