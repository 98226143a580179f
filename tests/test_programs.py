"""Random programs of views, in-place writes and pointwise ops: the device and the CPU must agree bit for bit, aliasing included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.threads import on_threads

DEVICE = "neuron"
Tensors = list[torch.Tensor]

# Each step takes the pool and three numbers, and returns a tensor to add (a view keeps sharing memory with its base) or None.
# Integer-valued float64 arithmetic is exact, so "bit for bit" does not depend on the order of additions.
Step = Callable[[Tensors, int, int, int], torch.Tensor | None]


def pick(pool: Tensors, k: int) -> torch.Tensor:
    return pool[k % len(pool)]


def binary(pool: Tensors, a: int, b: int, c: int) -> torch.Tensor:
    x, y = pick(pool, a), pick(pool, b)
    y = y if y.shape == x.shape else torch.ones((), dtype=x.dtype, device=x.device) * c
    return (x + y, x - y, torch.maximum(x, y), torch.minimum(x, y), torch.where(x > y, x, y))[c % 5]


def in_place(pool: Tensors, a: int, b: int, c: int) -> None:
    x = pick(pool, a)
    if c % 4 == 0:
        x.add_(b)
    elif c % 4 == 1:
        x.neg_()
    elif c % 4 == 2:
        x.clamp_(-100, 100)
    else:
        x.copy_(x.flip(0) if x.dim() else x)


def write_part(pool: Tensors, a: int, b: int, c: int) -> None:
    x = pick(pool, a)
    if x.dim() and x.shape[0]:
        x[b % x.shape[0]] = float(c % 7)
        x[:: 1 + c % 3].sub_(1)


def view(pool: Tensors, a: int, b: int, c: int) -> torch.Tensor | None:
    x = pick(pool, a)
    if x.dim() == 0:
        return x.view(1)
    d = b % x.dim()
    n = x.shape[d]
    kind = c % 8
    if kind == 0:
        return x.transpose(0, d)
    if kind == 1 and n:
        return x.select(d, c % n)
    if kind == 2:
        return x.narrow(d, min(c % 3, n), n - min(c % 3, n))
    if kind == 3:
        return x.unsqueeze(d)
    if kind == 4 and x.is_contiguous():
        return x.view(-1)
    if kind == 5 and n > 1:
        return x.unfold(d, 2, 1)
    if kind == 6:
        return x.squeeze()
    return x.movedim(0, -1)


def copying(pool: Tensors, a: int, b: int, c: int) -> torch.Tensor | None:
    x = pick(pool, a)
    kind = c % 6
    if kind == 0:
        return x.contiguous()
    if kind == 1:
        return x.clone()
    if kind == 2:
        return torch.cat([x.reshape(-1), pick(pool, b).reshape(-1)])[:64]
    if kind == 3 and x.dim():
        return x.sum(b % x.dim()).clamp(-1000, 1000)
    if kind == 4:
        return torch.stack([x, x])[1]
    return x.to(torch.int32).to(torch.float64)


STEPS: list[Step] = [binary, in_place, in_place, write_part, view, view, view, copying]
program = st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 9), st.integers(0, 9), st.integers(0, 23)), max_size=30)


def run(steps: list[tuple[int, int, int, int]], device: str) -> Tensors:
    options = {"dtype": torch.float64, "device": device}
    pool: Tensors = [torch.arange(24.0, **options).reshape(2, 3, 4), torch.ones(4, 4, **options)]
    for which, a, b, c in steps:
        made = STEPS[which](pool, a, b, c)
        if made is not None and made.numel() <= 4096:
            pool.append(made)
    return pool


def outcome(steps: list[tuple[int, int, int, int]], device: str) -> tuple[Any, ...]:
    try:
        pool = run(steps, device)
        if device != "cpu":
            torch.neuron.synchronize()
    except RuntimeError as error:  # e.g. an in-place write to an overlapping view: both devices must refuse
        return ("error", str(error).split("(when calling")[0].split("(This error")[0].strip()[:60])
    return ("tensors", [(t.shape, t.stride(), t.storage_offset(), t.cpu().tolist()) for t in pool])


@settings(max_examples=150)
@given(program)
def test_random_programs_agree_with_the_cpu(steps: list[tuple[int, int, int, int]]) -> None:
    assert outcome(steps, DEVICE) == outcome(steps, "cpu")


def test_programs_on_four_threads_and_streams() -> None:
    base = [(k * 7 % len(STEPS), k % 10, k * 3 % 10, k * 5 % 24) for k in range(60)]
    programs = [base[k:] + base[:k] for k in range(4)]
    expected = [outcome(p, "cpu") for p in programs]
    torch.neuron.synchronize()
    failures: list[str] = []

    def work(k: int) -> None:
        with torch.neuron.stream(torch.neuron.Stream()):
            for _ in range(10):
                if outcome(programs[k], DEVICE) != expected[k]:
                    failures.append(f"thread {k}")

    on_threads(work)
    assert not failures
