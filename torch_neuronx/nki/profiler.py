"""What a kernel would cost on a NeuronCore: the answer of ``kernel.profile(...)`` and of ``nki.benchmark``.

All times here are modelled: documented formulas for each instruction, a schedule of the engines, and a few parameters that were fitted to
published measurements. docs/nki-calibration.md lists how far the model is from the measurements that it was not fitted to.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch_neuronx.nki import cost, cost_dma
from torch_neuronx.nki.cost_parameters import DMA_ENGINES
from torch_neuronx.nki.cost_schedule import COMPUTE, Span, Timeline, loop_count, schedule
from torch_neuronx.nki.instruction import Instruction, Loop, Node, SourceLine, flatten
from torch_neuronx.nki.kernel import Kernel, jit
from torch_neuronx.nki.target import PARTITIONS, Target
from torch_neuronx.nki.trace import TracedKernel

NOTE = "modelled, not measured"
_BUSY = 0.5  # an engine that works for less of the time than this is not what bounds the kernel


class Roofline(NamedTuple):
    """The least time that a NeuronCore's peak rates allow, and what gives it (modelled, as everything else)."""

    ridge: float  # operations per byte of HBM at which the two limits meet
    compute_us: float  # tensor operations at the peak of their dtype
    memory_us: float  # HBM bytes at the core's share of the bandwidth
    bound: str  # "compute" or "memory"
    time_us: float  # the larger of the two
    share: float  # time_us over the modelled time: 1.0 is a kernel that cannot be faster


class LineCost(NamedTuple):
    """One line of the kernel on one engine."""

    line: SourceLine
    opcode: str  # several are joined by "+"
    engine: str
    busy_us: float
    instructions: int


class Profile:
    """The modelled run of one traced kernel.

    Attributes:
        target, cores: what it was modelled for.
        time_us: from the start to the last result's arrival in HBM, in microseconds.
        utilization: share of the time, 0 to 1, that each engine works: ``tensor``, ``vector``, ``scalar``, ``gpsimd``, ``sync``, ``dma``
            (the mean of the DMA engines) and ``dma0`` to ``dma15``; with two cores the mean of both.
        bound: the engine with the highest utilization; ``"latency"`` when none works half of the time: then instructions wait for each
        other. hbm_bytes: bytes read from and written to HBM.
        operations: floating-point operations of the Tensor Engine (2 per multiply-add; transposes are none).
        intensity: operations per byte of HBM. Compare with ``roofline.ridge``.
        spans: one for each instruction and engine, in nanoseconds.
        note: that all this is modelled.
    """

    note = NOTE

    def __init__(self, traced: TracedKernel, loop_turns: int = 1) -> None:
        self.name = traced.name
        self.target: Target = traced.target
        self.cores = len(traced.instructions)
        self.loop_turns = loop_turns
        timeline: Timeline = schedule(traced.instructions, traced.target, loop_turns)
        self.spans: list[Span] = timeline.spans
        self.time_us = timeline.end / 1000
        self.instructions = sum(1 for nodes in traced.instructions for _ in flatten(nodes))
        self._turns = {i: turns for nodes in traced.instructions for i, turns in _turns(nodes, loop_turns, 1)}
        self.hbm_bytes = sum(self._transfer(i) * turns for i, turns in self._turns.items())
        self.operations = sum(cost.operations(i) * turns for i, turns in self._turns.items())

    def _transfer(self, i: Instruction) -> int:
        return cost_dma.transfer(i, self.target).hbm_bytes if cost.is_dma(i) else 0

    @cached_property
    def busy_us(self) -> dict[str, float]:
        """Microseconds of work of each engine, summed over the cores."""
        busy: dict[str, float] = dict.fromkeys([*(e.name for e in COMPUTE), *(f"dma{n}" for n in range(DMA_ENGINES))], 0.0)
        for span in self.spans:
            for lane in span.lanes:
                busy[lane] += (span.end - span.start) * span.turns / 1000
        return busy

    @cached_property
    def utilization(self) -> dict[str, float]:
        whole = self.time_us * self.cores or 1.0
        shares = {lane: busy / whole for lane, busy in self.busy_us.items()}
        queues = [shares.pop(f"dma{n}") for n in range(DMA_ENGINES)]
        return {**shares, "dma": sum(queues) / DMA_ENGINES, **{f"dma{n}": share for n, share in enumerate(queues)}}

    @property
    def bound(self) -> str:
        engines = {name: self.utilization[name] for name in [*(e.name for e in COMPUTE), "dma"]}
        best = max(engines, key=lambda name: engines[name])
        return best if engines[best] >= _BUSY else "latency"

    @property
    def intensity(self) -> float:
        return self.operations / self.hbm_bytes if self.hbm_bytes else 0.0

    @cached_property
    def roofline(self) -> Roofline:
        # Ideal tensor time by the instructions' own dtypes, so that fp8 and fp32 have their own peaks.
        per_core = 1000.0 * self.cores
        ideal = sum(_ideal_ns(i, self.target) * turns for i, turns in self._turns.items()) / per_core
        memory = self.hbm_bytes / self.target.hbm_bytes_per_ns / per_core
        peak = self.operations / (ideal * per_core) if ideal else 2 * PARTITIONS * PARTITIONS * self.target.tensor_ghz
        bound, time = ("compute", ideal) if ideal >= memory else ("memory", memory)
        return Roofline(peak / self.target.hbm_bytes_per_ns, ideal, memory, bound, time, time / self.time_us if self.time_us else 0.0)

    def lines(self, limit: int | None = None) -> list[LineCost]:
        """Where the time goes: lines of the kernel by their engine's work, the most expensive first (modelled).

        A DMA's work is that of all its engines over 16, so that one saturated microsecond counts as one.
        """
        busy: dict[tuple[SourceLine, str], float] = defaultdict(float)
        count: dict[tuple[SourceLine, str], set[int]] = defaultdict(set)
        opcodes: dict[SourceLine, set[str]] = defaultdict(set)
        for span in self.spans:
            key = (span.instruction.line, span.engine.name)
            share = len(span.queues) / DMA_ENGINES if span.queues else 1.0
            busy[key] += (span.end - span.start) * span.turns / 1000 * share
            count[key].add(id(span.instruction))
            opcodes[span.instruction.line].add(span.instruction.opcode)
        ranked = sorted(busy, key=lambda key: -busy[key])
        return [
            LineCost(line, "+".join(sorted(opcodes[line])), engine, busy[line, engine], len(count[line, engine]))
            for line, engine in ranked[:limit]
        ]

    def to_perfetto(self, path: str | Path) -> Path:
        """Writes the timeline as a trace that https://ui.perfetto.dev opens: a process for each core, a track for each engine.

        A device loop is drawn once; ``turns`` says how often it runs.
        """
        events: list[dict[str, Any]] = []
        lanes = [*(e.name for e in COMPUTE), *(f"dma{n}" for n in range(DMA_ENGINES))]
        for core in range(self.cores):
            label = f"NeuronCore {core}, {self.target.name} ({NOTE})"
            events.append({"ph": "M", "name": "process_name", "pid": core, "args": {"name": label}})
            for tid, lane in enumerate(lanes):
                events.append({"ph": "M", "name": "thread_name", "pid": core, "tid": tid, "args": {"name": lane}})
                events.append({"ph": "M", "name": "thread_sort_index", "pid": core, "tid": tid, "args": {"sort_index": tid}})
        numbers = {lane: tid for tid, lane in enumerate(lanes)}
        for span in self.spans:
            i = span.instruction
            args = {"instruction": repr(i), "line": str(i.line), "turns": span.turns, "note": NOTE}
            event = {"ph": "X", "name": i.name or i.opcode, "pid": span.core, "args": args}
            event |= {"ts": span.start / 1000, "dur": (span.end - span.start) / 1000}
            events += [{**event, "tid": numbers[lane]} for lane in span.lanes]
        path = Path(path)
        path.write_text(json.dumps({"traceEvents": events, "otherData": {"kernel": self.name, "target": self.target.name, "times": NOTE}}))
        return path

    def plot(self, path: str | Path, start_us: float = 0.0, stop_us: float | None = None) -> Path:
        """Draws the timeline, or a part of it, as a PNG: a row for each engine, coloured by opcode.

        Raises:
            ImportError: matplotlib is not installed (``pip install torchneuron[tools]``).
        """
        from torch_neuronx.nki.profiler_plot import plot

        return plot(self, Path(path), start_us, self.time_us if stop_us is None else stop_us)

    def __str__(self) -> str:
        shares = {name: share for name, share in self.utilization.items() if not name[-1].isdigit() and share > 0}
        busy = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
        roof = self.roofline
        work = f"HBM {self.hbm_bytes / 1e6:.3f} MB, "
        if self.operations:
            work += f"{self.operations / 1e9:.3f} GFLOP, {self.intensity:.1f} FLOP per byte (ridge {roof.ridge:.0f})"
        else:
            work += "nothing for the Tensor Engine"
        return "\n".join(
            [
                f"{self.name} on {self.target.name}, {self.cores} core(s): {self.time_us:.2f} us ({NOTE})",
                f"  {self.instructions} instructions, bound by {self.bound}; busy: {busy}",
                f"  {work}",
                f"  roofline {roof.time_us:.2f} us by {roof.bound}: {100 * roof.share:.0f} % of it reached",
            ]
        )

    def __repr__(self) -> str:
        return f"<Profile of {self.name} on {self.target.name}: {self.time_us:.2f} us, {NOTE}>"


def _turns(nodes: list[Node], loop_turns: int, outer: int) -> list[tuple[Instruction, int]]:
    found: list[tuple[Instruction, int]] = []
    for node in nodes:
        if isinstance(node, Loop):
            found += _turns(node.body, loop_turns, outer * loop_count(node, loop_turns))
        else:
            found.append((node, outer))
    return found


def _ideal_ns(i: Instruction, target: Target) -> float:
    """Time of a matmul's operations with all rows and columns of the array at work."""
    work = cost.operations(i)
    if not work:
        return 0.0
    per_pass = 2 * PARTITIONS * PARTITIONS * target.tensor_ghz * cost.rows_per_pass(i)
    return work / per_pass


def profile(traced: TracedKernel, loop_turns: int = 1) -> Profile:
    """The modelled run of ``traced``. ``loop_turns``: how often a device loop runs whose bounds only registers know."""
    return Profile(traced, loop_turns)


class BenchmarkResult:
    """What ``nki.benchmark`` leaves in ``kernel.benchmark_result``. The model has no spread, so every percentile is the modelled time."""

    note = NOTE

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.nc_latency = Latency(profile.time_us)


class Latency:
    """``nc_latency``: device time of one run, in microseconds (modelled)."""

    note = NOTE

    def __init__(self, time_us: float) -> None:
        self._time_us = time_us

    def get_latency_percentile(self, percentile: int) -> float:
        """Microseconds.

        Raises:
            ValueError: not between 0 and 100.
        """
        if not 0 <= percentile <= 100:
            raise ValueError(f"get_latency_percentile: {percentile} is not between 0 and 100")
        return self._time_us


def benchmark(
    kernel: Any = None, warmup: int = 10, iters: int = 100, save_neff_name: str | None = None, save_trace_name: str | None = None
) -> Any:
    """``nki.benchmark``, with or without parentheses: a kernel that keeps its modelled time in ``benchmark_result`` whenever it is called.

    Args:
        warmup, iters: accepted; the model has no spread, so nothing is repeated.
        save_neff_name: accepted; there is no NEFF here.
        save_trace_name: where to write the timeline for Perfetto.
    """
    if kernel is None:
        return lambda kernel: benchmark(kernel, warmup, iters, save_neff_name, save_trace_name)
    return Benchmarked(kernel, save_trace_name)


def profile_decorator(
    kernel: Any = None,
    working_directory: str | Path = ".",
    save_neff_name: str | None = None,
    save_trace_name: str | None = None,
    profile_nth: int = 1,
    **ignored: Any,
) -> Any:
    """``nki.profile``, with or without parentheses: as :func:`benchmark`, with the timeline written into ``working_directory``.

    The file is ``save_trace_name``, by default the kernel's name with ``.perfetto.json``.
    """
    if kernel is None:
        return lambda kernel: profile_decorator(kernel, working_directory, save_neff_name, save_trace_name, profile_nth)
    name = save_trace_name or f"{getattr(kernel, '__name__', 'kernel')}.perfetto.json"
    return Benchmarked(kernel, Path(working_directory) / name)


class Benchmarked:
    """A kernel that is modelled whenever it runs. ``benchmark_result`` is the last call's; None before the first."""

    def __init__(self, kernel: Any, trace_path: str | Path | None = None) -> None:
        self.kernel = kernel if isinstance(kernel, Kernel) else jit(kernel)
        self.trace_path = trace_path
        self.benchmark_result: BenchmarkResult | None = None
        functools.update_wrapper(self, kernel)

    def __getitem__(self, grid: Any) -> Benchmarked:
        launched = Benchmarked(self.kernel[grid], self.trace_path)
        launched._origin = self
        return launched

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.kernel(*args, **kwargs)
        self._keep(BenchmarkResult(self.kernel.profile(*args, **kwargs)))
        return result

    def _keep(self, result: BenchmarkResult) -> None:
        """The result is also found on the kernel that was indexed with a grid, where scripts look for it."""
        self.benchmark_result = result
        if self.trace_path is not None:
            result.profile.to_perfetto(self.trace_path)
        if self._origin is not None:
            self._origin.benchmark_result = result

    _origin: Benchmarked | None = None
