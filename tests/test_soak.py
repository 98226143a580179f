"""Four threads on four streams for a while: no error, right results, and all memory comes back."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.threads import on_threads

DEVICE = "neuron"


def train_a_little(seed: int, stream: torch.Stream, until: float, shared: list[Any], problems: list[str]) -> int:
    """Small training steps on `stream`; each step also reads what another thread published, behind an event of its stream."""
    steps = 0
    generator = torch.Generator().manual_seed(seed)
    with torch.neuron.stream(stream):
        weight = torch.randn(32, 32, generator=generator).to(DEVICE).requires_grad_()
        optimizer = torch.optim.AdamW([weight], lr=1e-3)
        while steps == 0 or time.monotonic() < until:
            x = torch.randn(16, 32, generator=generator).to(DEVICE, non_blocking=True)
            loss = F.mse_loss(torch.tanh(x @ weight), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            event = torch.neuron.Event()
            mine = torch.full((64,), float(seed), device=DEVICE)
            event.record()
            shared[seed] = (mine, event)
            theirs, their_event = shared[(seed + 1) % 4]
            their_event.wait()
            theirs.record_stream(stream)
            if steps % 16 == 0 and not (theirs == float((seed + 1) % 4)).all().item():
                problems.append(f"thread {seed} read {theirs.tolist()[:3]}")
            if steps % 64 == 0 and not torch.isfinite(loss).item():
                problems.append(f"thread {seed}: loss {loss.item()}")
            steps += 1
    return steps


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.full)])
@pytest.mark.timeout(180)
def test_four_threads_on_four_streams(seconds: int) -> None:
    gc.collect()
    torch.neuron.synchronize()
    start = torch.neuron.memory_allocated()
    problems: list[str] = []
    steps = [0] * 4
    shared: list[Any] = []
    for seed in range(4):
        event = torch.neuron.Event()
        value = torch.full((64,), float(seed), device=DEVICE)
        event.record()
        shared.append((value, event))
    until = time.monotonic() + seconds
    streams = [torch.neuron.Stream(priority=-(k % 2)) for k in range(4)]

    def work(seed: int) -> None:
        steps[seed] = train_a_little(seed, streams[seed], until, shared, problems)

    on_threads(work, seconds=seconds + 60)
    assert problems == []
    assert min(steps) > 0
    del value, event
    shared.clear()
    gc.collect()
    torch.neuron.synchronize()
    assert torch.neuron.memory_allocated() == start
