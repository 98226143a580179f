"""The most memory that a training step holds beyond weights and optimizer state."""

import json
import tempfile
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


def cpu_high_water(training: Training) -> int:
    """Bytes, as PyTorch's profiler counts what goes through the CPU allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        training.step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]")


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
