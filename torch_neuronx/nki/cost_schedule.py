"""When each instruction would run: a list schedule of the five engines and sixteen DMA engines of each NeuronCore. Modelled, not measured.

An engine takes, among the instructions whose inputs are there, the first in program order: what AWS's compiler does when it orders the
queues. The kernel's own order is kept where it asks for it (``no_reorder``, ``depends_on``), because those are edges of the graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch_neuronx.nki import cost, cost_dma
from torch_neuronx.nki.cost_banks import Banks
from torch_neuronx.nki.cost_graph import Edge, Task, build
from torch_neuronx.nki.cost_parameters import DMA_ENGINES, PARAMETERS, CostParameters
from torch_neuronx.nki.instruction import Engine, Instruction, Loop, Node
from torch_neuronx.nki.target import Target

COMPUTE = (Engine.tensor, Engine.vector, Engine.scalar, Engine.gpsimd, Engine.sync)
_ALL = range(DMA_ENGINES)
LOOP_NS = 100.0  # a turn of a device loop: branch and register arithmetic (assumed; nothing is published)


class Span(NamedTuple):
    """One instruction on one engine, or on several DMA engines at the same time; times in nanoseconds from the kernel's start."""

    engine: Engine
    core: int
    start: float
    end: float
    instruction: Instruction
    queues: tuple[int, ...] = ()  # which of the DMA engines
    turns: int = 1  # how often the enclosing device loops repeat this span

    @property
    def lanes(self) -> tuple[str, ...]:
        """``("vector",)`` and the like, or some of ``dma0`` to ``dma15``."""
        return tuple(f"dma{n}" for n in self.queues) if self.queues else (self.engine.name,)


class Timeline(NamedTuple):
    spans: list[Span]
    end: float  # ns
    barriers: int


def schedule(cores: Sequence[Sequence[Node]], target: Target, loop_turns: int = 1) -> Timeline:
    """The timeline of a kernel that runs on ``cores``.

    ``loop_turns`` is how often a device loop runs whose bounds only registers know. Cores run independently between two ``core_barrier``s,
    at which they wait for each other.
    """
    parts = [_split_at_barriers(nodes) for nodes in cores]
    start, spans = 0.0, []
    for section in range(max(len(p) for p in parts)):
        end = start
        for part in parts:
            if section < len(part):
                found, stop = _Core(part[section], target, loop_turns, start).run()
                spans += found
                end = max(end, stop)
        start = end
    return Timeline(spans, start, max(len(p) for p in parts) - 1)


def _split_at_barriers(nodes: Sequence[Node]) -> list[list[Node]]:
    sections: list[list[Node]] = [[]]
    for node in nodes:
        sections[-1].append(node)
        if isinstance(node, Instruction) and node.opcode == "core_barrier":
            sections.append([])
    return [s for s in sections if s] or [[]]


@dataclass
class _Queue:
    """Instructions of one engine: those not ready yet by time, those ready by program order."""

    free: float
    future: list[tuple[float, int, Task]]
    ready: list[tuple[int, float, Task]]

    def next_start(self) -> float:
        if self.ready:
            return max(self.free, min(self.ready[0][1], self.free))
        return max(self.free, self.future[0][0]) if self.future else float("inf")

    def pop(self, now: float) -> Task:
        while self.future and self.future[0][0] <= now:
            at, index, task = heapq.heappop(self.future)
            heapq.heappush(self.ready, (index, at, task))
        return heapq.heappop(self.ready)[2]


class _Core:
    def __init__(self, nodes: Sequence[Node], target: Target, loop_turns: int, start: float) -> None:
        self.target, self.loop_turns, self.origin = target, loop_turns, start
        self.parameters: CostParameters = PARAMETERS[target.name]
        self.tasks = build(nodes, target)
        self.queues = {engine: _Queue(start, [], []) for engine in (*COMPUTE, Engine.dma)}
        self.dma_free = [start] * DMA_ENGINES
        self.banks = Banks(self.tasks, start)
        self.ready_at: dict[int, float] = {}
        self._inside: set[int] = set()
        self.spans: list[Span] = []
        self.end = start

    def run(self) -> tuple[list[Span], float]:
        # A device loop is a wall: what precedes it has ended, what follows it waits. So the list is scheduled in pieces.
        pending: list[Task] = []
        for task in self.tasks:
            if task.loop is None:
                pending.append(task)
                continue
            self._run_piece(pending)
            pending = []
            self._run_loop(task)
        self._run_piece(pending)
        return self.spans, self.end

    def _run_piece(self, tasks: list[Task]) -> None:
        self._inside = {task.index for task in tasks}
        for task in [task for task in tasks if task.waits == 0]:
            self._enqueue(task, self.ready_at.get(task.index, self.origin))
        while True:
            for task, at in self.banks.granted():
                self._queue(task, at)
            engine = min(self.queues, key=lambda e: self.queues[e].next_start())
            now = self.queues[engine].next_start()
            if now == float("inf"):
                forced = self.banks.force(self.end)
                if not forced:
                    return
                for task, at in forced:
                    self._queue(task, at)
                continue
            task = self.queues[engine].pop(now)
            assert task.instruction is not None
            if engine is Engine.dma:
                self._start_dma(task, task.instruction, now)
            elif task.instruction.engine is Engine.dma:
                self._trigger(task, task.instruction, engine, now)
            else:
                self._start(task, task.instruction, engine, now)

    def _start(self, task: Task, i: Instruction, engine: Engine, now: float) -> None:
        busy, latency = cost.cycles(i, self.target)
        ghz = cost.clock_ghz(engine, self.target)
        end = now + busy / ghz
        self.queues[engine].free = end
        self.spans.append(Span(engine, i.core, now, end, i))
        self._finish(task, end, end + latency / ghz, engine)

    def _trigger(self, task: Task, i: Instruction, engine: Engine, now: float) -> None:
        """An engine starts a DMA; GpSimd writes its descriptors first where software makes them."""
        move = cost_dma.transfer(i, self.target)
        end = now + (move.gpsimd_cycles / self.target.gpsimd_ghz or self.parameters.trigger_ns)
        self.queues[engine].free = end
        self.spans.append(Span(engine, i.core, now, end, i))
        heapq.heappush(self.queues[Engine.dma].future, (end + move.start_ns, task.index, task))

    def _start_dma(self, task: Task, i: Instruction, now: float) -> None:
        move = cost_dma.transfer(i, self.target)
        free = self.dma_free
        chosen = _ALL if move.engines == DMA_ENGINES else heapq.nsmallest(move.engines, _ALL, key=free.__getitem__)
        begins: dict[float, list[int]] = {}
        for e in chosen:
            begins.setdefault(max(now, free[e]), []).append(e)
            free[e] = max(now, free[e]) + move.engine_ns
        for begin, together in begins.items():
            self.spans.append(Span(Engine.dma, i.core, begin, begin + move.engine_ns, i, tuple(together)))
        end = max(begins) + move.engine_ns
        self.queues[Engine.dma].free = min(free)
        self._finish(task, end, end + self.parameters.dma_latency_ns, Engine.dma)

    def _finish(self, task: Task, end: float, visible: float, engine: Engine | None) -> None:
        self.end = max(self.end, visible)
        self.banks.done(task, end)
        for successor, edge in task.successors:
            at = visible if edge is Edge.data else end
            if engine is not None and engine is not Engine.dma and not _on(successor, engine):
                at += self.parameters.semaphore_cycles / cost.clock_ghz(engine, self.target)
            self.ready_at[successor.index] = max(at, self.ready_at.get(successor.index, self.origin))
            successor.waits -= 1
            if successor.waits == 0 and successor.index in self._inside:
                self._enqueue(successor, self.ready_at[successor.index])

    def _enqueue(self, task: Task, at: float) -> None:
        if task.instruction is None:  # memory is free: no time passes
            self._finish(task, at, at, None)
        elif task.psum:
            self.banks.ask(task, at)
        else:
            self._queue(task, at)

    def _queue(self, task: Task, at: float) -> None:
        assert task.instruction is not None
        engine = task.instruction.engine
        if engine is Engine.dma:
            engine = task.instruction.attrs.get("trigger", Engine.sync)
        heapq.heappush(self.queues[engine].future, (max(at, self.origin), task.index, task))

    def _run_loop(self, task: Task) -> None:
        loop = task.loop
        assert loop is not None
        turns = loop_count(loop, self.loop_turns)
        spans, stop = _Core(loop.body, self.target, self.loop_turns, self.end).run()
        self.spans += [span._replace(turns=span.turns * turns) for span in spans]
        self.end += turns * (stop - self.end + LOOP_NS)
        self.origin = self.end
        for queue in self.queues.values():
            queue.free = self.end
        self.dma_free = [self.end] * DMA_ENGINES
        self._inside = set()
        self._finish(task, self.end, self.end, None)


def loop_count(loop: Loop, otherwise: int) -> int:
    """How often a device loop runs: known for constant bounds, else ``otherwise``."""
    if loop.counter is not None and isinstance(loop.start, int) and isinstance(loop.stop, int):
        return max(0, -(-(loop.stop - loop.start) // loop.step))
    return otherwise


def _on(task: Task, engine: Engine) -> bool:
    return task.instruction is not None and task.instruction.engine is engine
