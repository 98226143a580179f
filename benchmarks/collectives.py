"""Collectives between processes of this host, one thread each, against PyTorch's Gloo on the same ranks; and how well they hide."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.table import Row, Rows, group
from benchmarks.timing import human_time, interleave
from tests.distributed.workers import Ranks

KIB, MIB = 1 << 10, 1 << 20
# Bytes, and the most that neuron's time may be of Gloo's: half the latency at 1 KiB, twice the bandwidth above 1 MiB.
SIZES = {"1 KiB": (KIB, 0.5), "64 KiB": (64 * KIB, None), "1 MiB": (MIB, None), "16 MiB": (16 * MIB, 0.5), "64 MiB": (64 * MIB, 0.5)}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def call_of(name: str, device: str, size: int) -> Callable[[], None]:
    """One collective with ``size`` bytes of input, or of output where that is larger."""
    ranks = dist.get_world_size()
    whole = torch.ones(max(size // 4, ranks), device=device)
    part = torch.ones(whole.numel() // ranks, device=device)
    other = torch.empty_like(whole)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }
    return calls[name]


def seconds(call: Callable[[], None], device: str, repeats: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
        if device == "neuron":
            torch.neuron.synchronize()
    return (time.perf_counter() - start) / repeats


def measure(name: str, size: int, pairs: int) -> tuple[float, float, float]:
    """Runs on each rank: medians of neuron and Gloo, and of their ratio."""
    repeats = max(1, min(100, 4 * MIB // size))
    calls = {device: call_of(name, device, size) for device in ("neuron", "cpu")}
    for device, call in calls.items():
        seconds(call, device, 2)
    return interleave(lambda: seconds(calls["neuron"], "neuron", repeats), lambda: seconds(calls["cpu"], "cpu", repeats), pairs)


@group("collectives")
def collectives(effort: float) -> Rows:
    for count in (2, 4):
        ranks = Ranks(count, TEST_BACKEND="cpu:gloo,neuron:neuron")
        try:
            for name in COLLECTIVES:
                for label, (size, bar) in SIZES.items():
                    neuron, gloo, ratio = ranks.run(measure, name, size, max(1, int(7 * effort)))[0]
                    yield Row(
                        f"{name}, {label}, {count} ranks", ratio, bar=bar, detail=f"{human_time(neuron)} against {human_time(gloo)} (Gloo)"
                    )
        finally:
            ranks.close()


LINK_US = 20_000


def overlap(pairs: int) -> tuple[float, float, float]:
    """Seconds of matmuls alone, of an all_reduce alone (with the modelled link), and of both, the collective on a side stream."""
    x = torch.ones(256, 256, device="neuron")
    message = torch.ones(64 * KIB, device="neuron")
    side = torch.neuron.Stream()

    def multiply() -> None:
        for _ in range(40):
            x @ x

    def reduce() -> None:
        with torch.neuron.stream(side):
            dist.all_reduce(message, dist.ReduceOp.MAX)

    def both() -> None:
        reduce()
        multiply()

    def time_of(call: Callable[[], None]) -> float:
        dist.barrier()
        start = time.perf_counter()
        call()
        torch.neuron.synchronize()
        return time.perf_counter() - start

    for call in (multiply, reduce, both):
        time_of(call)
    times = [sorted(time_of(call) for _ in range(pairs))[pairs // 2] for call in (multiply, reduce, both)]
    return times[0], times[1], times[2]


@group("overlap")
def overlaps(effort: float) -> Rows:
    ranks = Ranks(min(2, os.cpu_count() or 1), TORCH_NEURONX_EMULATED_LINK_US=str(LINK_US))
    try:
        compute, link, both = ranks.run(overlap, max(3, int(9 * effort)))[0]
    finally:
        ranks.close()
    detail = f"{human_time(both)}; matmuls alone {human_time(compute)}, collective alone {human_time(link)} ({LINK_US} us modelled link)"
    yield Row("collective on a side stream: both / the longer", both / max(compute, link), bar=1.15, detail=detail)
