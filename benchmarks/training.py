"""Training steps with AdamW, the same optimizer implementation on both devices."""

from statistics import geometric_mean

import torch

from benchmarks.models import MODELS, OPTIMIZERS, Training
from benchmarks.table import Row, Rows, group
from benchmarks.timing import human_time, interleave, seconds

BAR = 1.10


def scheduled_misses(optimizer: str) -> int:
    """Calls that had to build a Program during ten steps whose learning rate changes each time, after the first few."""
    training = Training("small MLP", optimizer, "neuron")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 1000)

    def step() -> None:
        training.step()
        schedule.step()

    for _ in range(5):
        step()
    with torch.neuron.explain() as report:
        for _ in range(10):
            step()
    return int(report.misses)


@group("training step")
def training(effort: float) -> Rows:
    for optimizer in OPTIMIZERS:
        ratios = []
        for name in MODELS:
            on_neuron, on_cpu = Training(name, optimizer, "neuron"), Training(name, optimizer, "cpu")
            for side in (on_neuron, on_cpu):
                side.sample()
                side.sample()
            neuron, cpu, ratio = interleave(lambda: seconds(on_neuron.sample), lambda: seconds(on_cpu.sample), int(15 * effort))  # noqa: B023
            ratios.append(ratio)
            steps = on_cpu.steps
            yield Row(f"{name}, AdamW {optimizer}", ratio, detail=f"{human_time(neuron / steps)} against {human_time(cpu / steps)}")
        yield Row(f"geometric mean, AdamW {optimizer}", geometric_mean(ratios), bar=BAR)
        yield Row(f"cache misses with a schedule, AdamW {optimizer}", scheduled_misses(optimizer), "", 0.0)
