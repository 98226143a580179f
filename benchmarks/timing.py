"""Interleaved pairs and medians: what both sides of a ratio suffer alike cancels out."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
DEVICES = ("neuron", "cpu")


def synchronize() -> None:
    torch.accelerator.synchronize()


def seconds(body: Callable[[], None], finish: Callable[[], None] | None = None) -> float:
    """Time of `body`, `finish` included when given."""
    start = time.perf_counter()
    body()
    if finish:
        finish()
    return time.perf_counter() - start


def interleave(first: Callable[[], float], second: Callable[[], float], pairs: int) -> tuple[float, float, float]:
    """Calls both by turns, each going first in half of the pairs.

    Returns the medians of what they return, and the median of the pairs' ratios.
    """
    a: list[float] = []
    b: list[float] = []
    for i in range(max(1, pairs)):
        for function, into in ((first, a), (second, b)) if i % 2 == 0 else ((second, b), (first, a)):
            into.append(function())
    return statistics.median(a), statistics.median(b), statistics.median(x / y for x, y in zip(a, b, strict=True))


def run_child(*command: str, **environment: str) -> dict:
    """The JSON object that ``python *command`` prints in a process of its own; everything it prints besides is under "printed"."""
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, *command], env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"python {' '.join(command)} failed:\n{done.stderr}")
    *others, last = done.stdout.splitlines()
    return {**json.loads(last), "printed": "\n".join(others) + done.stderr}


def human_time(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"
