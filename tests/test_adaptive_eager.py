"""Adaptive Eager: windows of eager calls run as one Program, with the results, errors and memory of plain eager."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from tests.test_programs import outcome, program
from tests.threads import on_threads
from torch_neuronx import _C

DEVICE = "neuron"


@pytest.fixture(autouse=True)
def adaptive() -> Iterator[None]:
    before = _C._set_adaptive_eager(True)
    yield
    _C._set_adaptive_eager(before)


def windows() -> dict[str, int]:
    counters = _C._counters()
    return {**counters["windows"], "closed": counters["closed_windows"]}


def during(run: Callable[[], Any]) -> dict[str, int]:
    torch.neuron.synchronize()
    before = windows()
    run()
    torch.neuron.synchronize()
    return {name: count - before[name] for name, count in windows().items()}


@settings(max_examples=60)
@given(program)
def test_random_programs_agree_with_the_cpu(steps: list[tuple[int, int, int, int]]) -> None:
    expected = outcome(steps, "cpu")
    for _ in range(4):  # learnt, seen, built, replayed
        assert outcome(steps, DEVICE) == expected


def steps_of_training() -> Iterator[tuple[torch.nn.Module, torch.Tensor]]:
    """The model and the loss, after each step."""
    torch.manual_seed(0)
    torch.neuron.manual_seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4)]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, target = torch.randn(8, 16).to(DEVICE), torch.arange(8).remainder(4).to(DEVICE)
    while True:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        yield model, loss.detach()


def training(steps: int) -> tuple[list[float], list[torch.Tensor]]:
    models, losses = zip(*islice(steps_of_training(), steps), strict=True)
    return [loss.item() for loss in losses], [p.detach().cpu() for p in models[0].parameters()]


def test_training_is_bit_for_bit_that_of_plain_eager() -> None:
    losses, parameters = training(12)
    _C._set_adaptive_eager(False)
    plain_losses, plain_parameters = training(12)
    assert losses == plain_losses
    assert all(torch.equal(a, b) for a, b in zip(parameters, plain_parameters, strict=True))


def test_every_window_of_a_repeated_step_is_known() -> None:
    """Whatever the order in which the step frees its tensors: the allocator gives the same addresses in each."""
    steps = steps_of_training()

    def run() -> None:
        for _ in range(12):
            next(steps)

    for _ in range(4):  # each window has to be seen twice, and then where its temporaries lie in place
        during(run)
    counted = during(run)
    assert counted["launches"] == counted["closed"] >= 12


def test_temporaries_do_not_raise_the_peak_of_memory() -> None:
    def peak(adaptive: bool) -> int:
        _C._set_adaptive_eager(adaptive)
        steps = steps_of_training()
        for _ in range(8):
            next(steps)
        torch.neuron.synchronize()
        base = torch.neuron.memory_stats()["requested_bytes.all.current"]
        torch.neuron.reset_peak_memory_stats()
        for _ in range(8):
            next(steps)
        torch.neuron.synchronize()
        return torch.neuron.memory_stats()["requested_bytes.all.peak"] - base

    assert peak(adaptive=True) == peak(adaptive=False)


def test_two_runs_have_the_same_windows_and_memory() -> None:
    def run() -> tuple[dict[str, int], int, int]:
        gc.collect()
        torch.neuron.synchronize()
        torch.neuron.reset_peak_memory_stats()
        base = torch.neuron.memory_allocated()
        counted = during(lambda: training(6))
        return counted, torch.neuron.max_memory_allocated() - base, torch.neuron.memory_allocated() - base

    for _ in range(3):
        run()
    first, second = run(), run()
    assert first == second
    assert first[0]["closed"] == first[0]["launches"]
    _C._set_adaptive_eager(False)
    assert run()[2] == first[2]


def test_a_window_is_one_record() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = (x * 2).tanh() + 1
        return x

    x = torch.linspace(-1, 1, 64).to(DEVICE)
    y = x
    for _ in range(3):
        y = chain(x)
        torch.neuron.synchronize()
    kept: list[torch.Tensor] = []
    before = _C._counters()["launches"]
    counted = during(lambda: kept.append(chain(x)))
    assert _C._counters()["launches"] - before == 1
    assert counted["closed"] == counted["launches"] == 1 and counted["calls"] == 15
    assert torch.equal(kept[0].cpu(), y.cpu())


def test_payloads_are_no_part_of_a_window() -> None:
    x = torch.ones(8, device=DEVICE)

    def run(scale: float) -> torch.Tensor:
        return x * scale + scale

    for scale in (1.0, 2.0, 3.0, 4.0):
        result = run(scale)
        assert result.tolist() == [2 * scale] * 8
    counted = during(lambda: run(5.0).cpu())
    assert counted["closed"] == counted["launches"] == 1
    assert run(6.0).tolist() == [12.0] * 8


@pytest.mark.parametrize(
    "boundary",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: torch.neuron.synchronize(),
        lambda x: torch.neuron.Event().record(),
        lambda x: torch.nonzero(x),
        lambda x: x.copy_(torch.ones(8)),
        lambda x: torch.neuron.current_stream().query(),
        lambda x: torch.neuron.Stream().wait_stream(torch.neuron.current_stream()),
    ],
)
def test_what_closes_a_window(boundary: Callable[[torch.Tensor], Any]) -> None:
    x = torch.zeros(8, device=DEVICE)
    x.add_(1).mul_(1)
    for _ in range(3):
        x.add_(1)
        x.mul_(1)
        before = windows()["closed"]
        boundary(x)
        assert windows()["closed"] > before
    torch.neuron.synchronize()


def test_a_full_window_closes_by_itself() -> None:
    x = torch.zeros(4, device=DEVICE)
    x.add_(1)
    torch.neuron.synchronize()
    counted = during(lambda: [x.add_(1) for _ in range(200)])
    assert 2 <= counted["closed"] <= 13
    assert x.tolist() == [201.0] * 4


def test_memory_that_changes_hands_within_a_window() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        a = x.clone()
        b = a + 1  # a is an input of the window after the synchronisation below
        torch.neuron.synchronize()
        c = b * a
        del a, b  # their blocks go back while the window reads them
        d = c + 1
        e = d.exp().log()
        del c
        return torch.stack([d, e, d - e])

    x = torch.linspace(1, 2, 4096).to(DEVICE)
    results = [step(x) for _ in range(6)]
    _C._set_adaptive_eager(False)
    expected = step(x)
    assert all(torch.equal(r.cpu(), expected.cpu()) for r in results)


def test_streams_and_events() -> None:
    x = torch.zeros(1024, device=DEVICE)
    other = torch.neuron.Stream()
    for n in range(20):
        x.add_(1)
        other.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(other):
            y = x * 2 + 1
        torch.neuron.current_stream().wait_stream(other)
        y.record_stream(torch.neuron.current_stream())
        z = y - 1
        assert z[0].item() == 2 * (n + 1)


def test_threads_on_one_stream() -> None:
    failures: list[str] = []

    def work(k: int) -> None:
        for n in range(50):
            x = torch.full((16,), float(k), device=DEVICE)
            y = (x + n) * 2
            del x
            if y.tolist() != [2.0 * (k + n)] * 16:
                failures.append(f"{k} {n}")

    on_threads(work)
    assert not failures


def test_an_error_in_a_window_surfaces_once_and_names_the_call() -> None:
    x, index = torch.arange(4.0, device=DEVICE), torch.tensor([1, 2]).to(DEVICE)
    for _ in range(3):
        x.index_select(0, index), x + 1
        torch.neuron.synchronize()
    index.fill_(9)
    torch.neuron.synchronize()
    x.index_select(0, index)
    y = x + 1
    with pytest.raises(IndexError, match=r"index out of range(.|\n)*aten::index_select"):
        torch.neuron.synchronize()
    torch.neuron.synchronize()
    assert y.tolist() == [1, 2, 3, 4]


def test_deterministic_mode_opens_no_window() -> None:
    x = torch.zeros(4, device=DEVICE)
    torch.use_deterministic_algorithms(True)
    try:
        x.add_(1)
        assert during(lambda: x.add_(1))["closed"] == 0
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_compiled_graph_and_a_captured_one_keep_the_order() -> None:
    graph = _C.CompiledGraph(lambda x: [x * 2], "double")
    x = torch.zeros(4, device=DEVICE)
    for n in range(4):
        x.add_(1)
        (y,) = graph([x])
        assert (y + 1).tolist() == [2.0 * (n + 1) + 1] * 4
    captured = torch.accelerator.Graph()
    with torch.Stream(DEVICE), captured:
        x.mul_(2)
    x.add_(1)
    captured.replay()
    x.add_(1)
    torch.neuron.synchronize()


def test_the_settings_switch_it(run_python: Callable[..., Any]) -> None:
    code = """
import torch
from torch_neuronx import _C
x = torch.zeros(4, device="neuron")
for _ in range(3): x.add_(1)
torch.neuron.synchronize()
print(_C._counters()["closed_windows"])
"""
    names = ("TORCH_NEURONX_ADAPTIVE_EAGER", "TORCH_NEURONX_ENABLE_CONCATENATION")
    for name in names:
        others = {other: None for other in names if other != name}
        assert int(run_python(code, **{name: "1"}, **others).stdout) > 0
        assert int(run_python(code, **{name: "0"}, **others).stdout) == 0
    assert int(run_python(code, **dict.fromkeys(names)).stdout) > 0  # on by default
