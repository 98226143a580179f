"""PSUM banks, given out while the schedule is made."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence

from torch_neuronx.nki.cost_graph import Task, banks, free_banks
from torch_neuronx.nki.memory import Buffer

RESERVE = 2  # banks that only the oldest waiting task may take, so that those who run ahead cannot lock it out


class Banks:
    """Which tensors hold a bank, who waits for one, and when banks become free."""

    def __init__(self, tasks: Sequence[Task], start: float) -> None:
        self._free = [start] * free_banks(tasks)  # a heap of times
        self._users = Counter(buffer for task in tasks for buffer in task.psum)
        self._held: dict[Buffer, int] = {}
        self._order = deque(task for task in tasks if task.psum)  # program order
        self._waiting: list[tuple[int, float, Task]] = []

    def ask(self, task: Task, at: float) -> None:
        """``task`` is ready at ``at`` but for its banks; :meth:`granted` gives it back when it has them."""
        heapq.heappush(self._waiting, (task.index, at, task))

    def granted(self) -> list[tuple[Task, float]]:
        """Waiting tasks that get their banks now, with the time at which they have them."""
        found, still = [], []
        while self._waiting:
            index, at, task = heapq.heappop(self._waiting)
            needed = self._needed(task)
            reserve = 0 if not needed or task is self._oldest() else RESERVE
            if needed + reserve <= len(self._free) or not needed:
                found.append((task, self._take(task, at)))
            else:
                still.append((index, at, task))
        self._waiting = still  # popped in order, so a heap
        return found

    def force(self, now: float) -> list[tuple[Task, float]]:
        """Nothing else can run: the oldest gets banks that are not there. Only kernels that overflow PSUM come here."""
        if not self._waiting:
            return []
        _, at, task = heapq.heappop(self._waiting)
        return [(task, max(self._take(task, at), now))]

    def done(self, task: Task, at: float) -> None:
        """``task`` has ended; tensors without further users give their banks back."""
        for buffer in task.psum:
            self._users[buffer] -= 1
            if not self._users[buffer]:
                for _ in range(self._held.pop(buffer, 0)):
                    heapq.heappush(self._free, at)

    def _needed(self, task: Task) -> int:
        return sum(banks(buffer) for buffer in task.psum if buffer not in self._held and self._users[buffer])

    def _oldest(self) -> Task | None:
        while self._order and not self._needed(self._order[0]):
            self._order.popleft()
        return self._order[0] if self._order else None

    def _take(self, task: Task, at: float) -> float:
        for buffer in task.psum:
            if buffer not in self._held:
                self._held[buffer] = 0
                for _ in range(banks(buffer)):
                    if self._free:
                        at = max(at, heapq.heappop(self._free))
                        self._held[buffer] += 1
        return at
