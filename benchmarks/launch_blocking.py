"""Does the queue pay? Training steps with it, against NEURON_LAUNCH_BLOCKING=1. Each setting needs a process of its own.

``python -m benchmarks.launch_blocking MODEL`` is that process: it prints the seconds of a step as JSON.
"""

import json
import statistics
import sys

from benchmarks.models import MODELS, Training
from benchmarks.table import Row, Rows, group
from benchmarks.timing import human_time, interleave, run_child, seconds

BAR = 1.0


def step_seconds(name: str, blocking: bool) -> float:
    child = run_child("-m", "benchmarks.launch_blocking", name, NEURON_LAUNCH_BLOCKING=str(int(blocking)))
    return float(child["seconds"])


@group("queue")
def launch_blocking(effort: float) -> Rows:
    for name in MODELS:
        queued, blocking, ratio = interleave(lambda: step_seconds(name, False), lambda: step_seconds(name, True), int(7 * effort))  # noqa: B023
        detail = f"{human_time(queued)} against {human_time(blocking)}"
        yield Row(f"{name}, queue / launch-blocking", ratio, bar=BAR, detail=detail)


def main() -> None:
    training = Training(sys.argv[1], "foreach", "neuron")
    training.sample()
    training.sample()
    samples = [seconds(training.sample) / training.steps for _ in range(9)]
    print(json.dumps({"seconds": statistics.median(samples)}))


if __name__ == "__main__":
    main()
