"""The most memory that a training step holds beyond weights and optimizer state."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.models import MODELS, Training
from benchmarks.table import Row, Rows, group
from benchmarks.timing import synchronize


def neuron_high_water(training: Training) -> int:
    """Bytes, as the device's caching allocator counts them."""
    synchronize()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    training.step()
    synchronize()
    return int(torch.accelerator.max_memory_allocated() - before)


@contextmanager
def without_native_chatter() -> Iterator[None]:
    """PyTorch's profiler writes a line to stderr at its start and end, past Python."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def cpu_high_water(training: Training) -> int:
    """Bytes, as PyTorch's profiler counts what goes through the CPU allocator."""
    with without_native_chatter(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        training.step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"])
    before = changes[0]["args"]["Total Allocated"] - changes[0]["args"]["Bytes"]
    return max(change["args"]["Total Allocated"] for change in changes) - before


@group("memory")
def memory(effort: float) -> Rows:
    for name in MODELS:
        water = {}
        for device, measure in (("neuron", neuron_high_water), ("cpu", cpu_high_water)):
            training = Training(name, "foreach", device)
            training.step()  # makes the optimizer's state
            training.optimizer.zero_grad()
            water[device] = measure(training)
        detail = f"{water['neuron'] / 2**20:.1f} MiB against {water['cpu'] / 2**20:.1f} MiB"
        yield Row(f"high water of a step, {name}", water["neuron"] / water["cpu"], detail=detail)
