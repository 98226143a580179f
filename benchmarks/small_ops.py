"""The cost of a small eager op: what the host pays to issue it, and what a long run of them takes."""

import torch

from benchmarks.table import Row, Rows, group
from benchmarks.timing import DEVICES, human_time, interleave, seconds, synchronize

ISSUED = 2_000  # few enough to fit in a stream's queue
RUN = 100_000


def adds(device: str, requires_grad: bool, count: int, wait: bool) -> float:
    """Seconds per ``x + y`` of 64 floats; with `wait` the final synchronise is part of it, without it happens outside."""
    x = torch.ones(64, device=device, requires_grad=requires_grad)
    y = torch.ones(64, device=device)

    def body() -> None:
        for _ in range(count):
            x + y

    synchronize()
    took = seconds(body, synchronize if wait and device != "cpu" else None)
    synchronize()
    return took / count


@group("small op")
def small_ops(effort: float) -> Rows:
    for requires_grad in (False, True):
        suffix = ", requires_grad" if requires_grad else ""
        for what, count, wait, pairs, bar in (
            ("issue add", ISSUED, False, 41, 1.25),
            (f"{RUN:,} adds and synchronise", RUN, True, 5, 1.6),
        ):
            count = count if not wait else max(1000, int(count * min(1.0, effort)))
            for device in DEVICES:
                adds(device, requires_grad, 500, True)
            neuron, cpu, ratio = interleave(
                lambda: adds("neuron", requires_grad, count, wait),  # noqa: B023
                lambda: adds("cpu", requires_grad, count, wait),  # noqa: B023
                int(pairs * effort),
            )
            yield Row(what + suffix, ratio, bar=bar, detail=f"{human_time(neuron)} against {human_time(cpu)} an op")
