"""Programs of many calls: recorded once per key, then one launch with the results, effects and random words of eager."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_programs import STEPS, Tensors, program
from tests.threads import on_threads
from torch_neuronx import _C

DEVICE = "neuron"
Function = Callable[..., list[Any]]


def compiled(fn: Function, **options: Any) -> Any:
    return _C.CompiledGraph(fn, fn.__name__, **options)


def launches(run: Callable[[], Any]) -> int:
    before = _C._counters()["launches"]
    run()
    return int(_C._counters()["launches"]) - before


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.cpu().nan_to_num(7), b.cpu().nan_to_num(7))


# ---- random programs ----


def inputs_for(seed: int, alias: bool) -> Tensors:
    base = (torch.arange(48, dtype=torch.float64) * (seed + 1) % 23 - 11).to(DEVICE)
    square = (torch.arange(16, dtype=torch.float64) - 3 * seed).reshape(4, 4).to(DEVICE)
    if alias:
        return [base[:24].reshape(2, 3, 4), base[12:36].reshape(4, 6), square]
    return [base[:24].clone().reshape(2, 3, 4), square]


def layout(tensors: Tensors) -> list[Any]:
    """Metadata of each tensor, and which ones share memory at which distance."""
    first: dict[int, int] = {}
    rows = []
    for index, t in enumerate(tensors):
        key = t.untyped_storage()._cdata
        leader = first.setdefault(key, index)
        rows.append((t.dtype, t.shape, t.stride(), leader, t.storage_offset() - tensors[leader].storage_offset(), t.is_conj()))
    return rows


def outcome(call: Callable[[Tensors], Tensors], seed: int, alias: bool) -> Any:
    given_inputs = inputs_for(seed, alias)
    versions = [t._version for t in given_inputs]
    try:
        results = call(list(given_inputs))
        torch.neuron.synchronize()
    except RuntimeError as error:
        return str(error).split("(This error")[0][:60]
    everything = given_inputs + results
    bumped = [t._version - v for t, v in zip(given_inputs, versions, strict=True)]
    return layout(everything), [t.cpu().tolist() for t in everything], bumped


@settings(max_examples=80)
@given(program, st.booleans())
def test_replays_equal_eager(steps: list[tuple[int, int, int, int]], alias: bool) -> None:
    def fn(*inputs: torch.Tensor) -> Tensors:
        pool = list(inputs)
        for which, a, b, c in steps:
            made = STEPS[which](pool, a, b, c)
            if made is not None and made.numel() <= 4096:
                pool.append(made)
        return pool

    def eager(inputs: Tensors) -> Tensors:
        with torch.no_grad():
            return fn(*inputs)

    graph = compiled(fn)
    for seed in (0, 1, 2):
        assert outcome(graph, seed, alias) == outcome(eager, seed, alias)
    stats = graph.stats()
    if not stats["fallbacks"] and stats["programs"]:
        assert stats["replays"] == 2 and stats["misses"] == 1


# ---- what a replay is ----


def chain(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    z = (x @ y).relu()
    return [torch.layer_norm(z, z.shape[-1:]), z.sum()]


def test_a_replay_is_one_launch_without_python() -> None:
    calls = []

    def fn(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        calls.append(1)
        return chain(x, y)

    graph = compiled(fn)
    x, y = torch.randn(8, 8, device=DEVICE), torch.randn(8, 8, device=DEVICE)
    expected = chain(x, y)
    for _ in range(3):
        arguments = [x, y]
        results = graph(arguments)
        assert arguments == [] and isinstance(results, list)
        assert all(same(a, b) for a, b in zip(results, expected, strict=True))
    assert len(calls) == 1
    assert launches(lambda: graph([x, y])) == 1
    stats = graph.stats()
    assert (stats["programs"], stats["misses"], stats["hits"], stats["replays"], stats["fallbacks"]) == (1, 1, 3, 3, 0)
    assert stats["calls"] == 4 and stats["steps"] == stats["kernels"] + stats["groups"]


def test_steady_state_allocates_results_and_one_block() -> None:
    def fn(x: torch.Tensor) -> Tensors:
        for _ in range(6):
            x = (x * 2).tanh()
        return [x]

    graph = compiled(fn)
    x = torch.randn(64, 1024, device=DEVICE)
    for _ in range(2):
        graph([x])
    torch.neuron.synchronize()
    before = torch.neuron.memory_stats()
    result = graph([x])
    torch.neuron.synchronize()
    after = torch.neuron.memory_stats()
    assert after["allocation.all.allocated"] - before["allocation.all.allocated"] <= 2
    assert after["segment.all.allocated"] == before["segment.all.allocated"]
    # Eleven temporaries of 256 KiB; never more than two live at once.
    assert graph.stats()["temporary_bytes"] <= 2 * x.nbytes
    assert same(result[0], fn(x)[0])


def test_a_first_run_allocates_what_eager_does() -> None:
    def fn(x: torch.Tensor) -> Tensors:
        return [x @ x @ x @ x]

    def allocations(call: Callable[[], Any]) -> int:
        torch.neuron.synchronize()
        before = torch.neuron.memory_stats()["allocation.all.allocated"]
        call()
        torch.neuron.synchronize()
        return int(torch.neuron.memory_stats()["allocation.all.allocated"]) - int(before)

    x = torch.randn(64, 64, device=DEVICE)
    fn(x)
    graph = compiled(fn)
    first = allocations(lambda: graph([x]))
    assert graph.stats()["temporary_bytes"] > 0
    assert first == allocations(lambda: fn(x)) == 3


def test_new_shapes_are_recorded_and_named() -> None:
    graph = compiled(chain)
    for n in (2, 3, 4):
        x = torch.randn(n, 8, device=DEVICE)
        y = torch.randn(8, 8, device=DEVICE)
        for _ in range(2):
            assert all(same(a, b) for a, b in zip(graph([x, y]), chain(x, y), strict=True))
    stats = graph.stats()
    assert stats["programs"] == stats["misses"] == stats["replays"] == 3
    assert stats["miss_reasons"][0] == "first call" and "[2, 8]" in stats["miss_reasons"][1] and "input 0" in stats["miss_reasons"][1]


def test_the_programs_used_last_are_kept() -> None:
    graph = _C.CompiledGraph(lambda x: [x + 1], "bounded", max_programs=2)
    tensors = [torch.ones(n, device=DEVICE) for n in (1, 2, 3)]
    for index in (0, 1, 0, 2, 0, 1):
        assert graph([tensors[index]])[0].tolist() == [2.0] * (index + 1)
    stats = graph.stats()
    assert stats["programs"] == 2 and stats["evictions"] == 2 and stats["misses"] == 4 and stats["replays"] == 2


def test_integers_booleans_and_floats_are_key() -> None:
    def fn(x: torch.Tensor, n: int, flag: bool, f: float) -> list[Any]:
        return [x.repeat(n) if flag else x * n, x + f, n + 1, None]

    graph = compiled(fn)
    x = torch.arange(3.0, device=DEVICE)
    for n, flag, f in ((2, True, 0.5), (3, True, 0.5), (3, False, 0.5), (3, False, 0.75), (2, True, 0.5)):
        results, expected = graph([x, n, flag, f]), fn(x, n, flag, f)
        assert same(results[0], expected[0]) and same(results[1], expected[1]) and results[2:] == expected[2:]
    assert graph.stats()["misses"] == 4 and graph.stats()["replays"] == 1


# ---- scalars on the host ----


def test_scalar_inputs_change_value_without_a_miss() -> None:
    def fn(x: torch.Tensor, lr: torch.Tensor) -> Tensors:
        return [x * lr, x.add(lr)]

    graph = compiled(fn)
    x = torch.arange(4.0, device=DEVICE)
    for value in (0.5, 0.25, 3.0, -1.0):
        lr = torch.tensor(value)
        assert all(same(a, b) for a, b in zip(graph([x, lr]), fn(x, lr), strict=True))
    assert graph.stats()["misses"] == 1 and graph.stats()["replays"] == 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s: [x.add(x, alpha=s.item())],
        lambda x, s: [x * (s * 2)],
        lambda x, s: [x + float(s) if s > 1 else x - float(s)],
        lambda x, s: [x * s, x.add(x, alpha=s.item())],
    ],
    ids=["item", "computed", "branch", "both"],
)
def test_a_scalar_that_becomes_something_else_is_key(fn: Function) -> None:
    graph = _C.CompiledGraph(fn, "scalar")
    x = torch.arange(4.0, device=DEVICE)
    for value in (0.5, 2.0, 0.5, 3.0, 2.0):
        s = torch.tensor(value)
        assert same(graph([x, s])[0], fn(x, s)[0])
        assert same(graph([x, s])[-1], fn(x, s)[-1])


# ---- aliasing and in-place ----


def test_inputs_that_share_memory_are_told_from_those_that_do_not() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> Tensors:
        a.mul_(2)
        return [b + 1]

    graph = compiled(fn)
    for _ in range(2):
        base = torch.arange(6.0, device=DEVICE)
        assert graph([base[:4], base[2:]])[0].tolist() == [5, 7, 5, 6]
        a, b = torch.arange(4.0, device=DEVICE), torch.arange(4.0, device=DEVICE)
        assert graph([a, b])[0].tolist() == [1, 2, 3, 4]
        assert graph([a, a])[0].tolist() == [1, 5, 9, 13]
    assert graph.stats()["programs"] == 3


def test_outputs_that_are_inputs_or_share_with_them() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> Tensors:
        a.add_(1)
        t = b.t()
        c = b + 1
        return [a, t, c, c, c.view(-1), a]

    graph = compiled(fn)
    for _ in range(3):
        a, b = torch.zeros(2, device=DEVICE), torch.arange(6.0, device=DEVICE).reshape(2, 3)
        ra, rt, rc, rc2, rv, ra2 = graph([a, b])
        assert ra is a and ra2 is a and rc is rc2
        rt.mul_(2)
        assert b.tolist() == [[0, 2, 4], [6, 8, 10]]
        rc.zero_()
        assert rv.tolist() == [0] * 6 and a.tolist() == [1, 1]


def test_a_slice_at_another_offset() -> None:
    buffer = torch.arange(12.0, device=DEVICE)

    def fn(x: torch.Tensor) -> Tensors:
        return [x * 2, x[1:]]

    relative, absolute = compiled(fn, offsets_in_key=False), compiled(fn)
    for start in (0, 4, 8):
        x = buffer[start : start + 4]
        for graph in (relative, absolute):
            doubled, tail = graph([x])
            assert doubled.tolist() == (x * 2).tolist() and tail.tolist() == x[1:].tolist()
            assert tail.storage_offset() == start + 1
    assert relative.stats()["programs"] == 1 and absolute.stats()["programs"] == 3

    def first(x: torch.Tensor) -> Tensors:
        return [x.as_strided((2,), (1,), 0) + 0]

    graph = compiled(first)
    for start in (4, 0, 8):
        assert graph([buffer[start:]])[0].tolist() == [0, 1]


def test_a_view_that_reaches_beyond_its_tensor_stays_inside_the_storage() -> None:
    graph = _C.CompiledGraph(lambda x: [x.as_strided((6,), (1,), 0) + 1], "reaching")
    large = torch.arange(8.0, device=DEVICE)
    for _ in range(2):
        assert graph([large[:3]])[0].tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(RuntimeError, match="out of bounds"):
        graph([torch.arange(3.0, device=DEVICE)])
    assert graph([large[:3]])[0].tolist() == [1, 2, 3, 4, 5, 6]
    stats = graph.stats()
    assert stats["replays"] == 2 and stats["fallbacks"] == 1 and "reaches beyond" in next(iter(stats["fallback_reasons"]))


def test_writes_bump_versions_as_eager_does() -> None:
    graph = _C.CompiledGraph(lambda x: [x.add_(1).mul_(2)], "bump")
    for _ in range(3):
        x = torch.zeros(3, device=DEVICE)
        graph([x])
        assert x._version == 2 and x.tolist() == [2, 2, 2]


def test_results_of_one_launch_live_on_their_own() -> None:
    graph = _C.CompiledGraph(lambda x: [x + 1, (x * 2).exp()], "results")
    x = torch.zeros(4, device=DEVICE)
    kept = [graph([x]) for _ in range(4)]
    x.add_(1)
    later = graph([x])
    assert all(r[0].tolist() == [1] * 4 and r[1].tolist() == [1] * 4 for r in kept)
    assert later[0].tolist() == [2] * 4
    assert len({r[0].data_ptr() for r in kept}) == 4


def test_batch_norm_updates_its_statistics() -> None:
    def fn(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Tensors:
        return [F.batch_norm(x, mean, var, training=True)]

    def unused(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Tensors:
        F.batch_norm(x, mean, var, training=True)
        return []

    for function in (fn, unused):
        graph = compiled(function)
        mean, var = torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)
        expected_mean, expected_var = mean.clone(), var.clone()
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(5, 3, device=DEVICE)
            graph([x, mean, var])
            function(x, expected_mean, expected_var)
            assert same(mean, expected_mean) and same(var, expected_var)


def test_calls_that_nothing_needs_do_not_run() -> None:
    def fn(x: torch.Tensor) -> Tensors:
        x.exp().sum()
        return [x + 1]

    graph = compiled(fn)
    x = torch.zeros(3, device=DEVICE)
    for _ in range(2):
        assert graph([x])[0].tolist() == [1] * 3
    assert graph.stats()["calls"] == 1


# ---- random ----


def test_random_words_are_fresh_and_those_of_eager() -> None:
    def fn(x: torch.Tensor) -> Tensors:
        noise = torch.rand_like(x)
        torch.rand(3, device=DEVICE)  # nothing needs it, but it takes its words
        return [F.dropout(x, 0.5), noise, torch.randperm(5, device=DEVICE)]

    graph = compiled(fn)
    x = torch.ones(7, 3, device=DEVICE)
    torch.neuron.manual_seed(3)
    actual = [graph([x]) for _ in range(4)] + [[torch.rand(4, device=DEVICE)]]
    torch.neuron.manual_seed(3)
    expected = [fn(x) for _ in range(4)] + [[torch.rand(4, device=DEVICE)]]
    assert all(same(a, b) for got, want in zip(actual, expected, strict=True) for a, b in zip(got, want, strict=True))
    assert not torch.equal(actual[1][1].cpu(), actual[2][1].cpu())
    assert graph.stats()["replays"] == 3


def test_a_generator_of_its_own_is_not_replayed() -> None:
    generator = torch.Generator(DEVICE)

    def fn(x: torch.Tensor) -> Tensors:
        return [x + torch.rand(3, device=DEVICE, generator=generator)]

    graph = compiled(fn)
    x = torch.zeros(3, device=DEVICE)
    generator.manual_seed(1)
    actual = [graph([x])[0] for _ in range(5)]
    generator.manual_seed(1)
    expected = [fn(x)[0] for _ in range(5)]
    assert all(same(a, b) for a, b in zip(actual, expected, strict=True))
    assert graph.stats()["replays"] == 0 and "generator" in next(iter(graph.stats()["fallback_reasons"]))


# ---- what cannot be replayed ----

SECRET = torch.full((3,), 5.0).to(DEVICE)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: [x * x.sum().item()], "item()"),
        (lambda x: [x[x > 1]], "results do not follow"),
        (lambda x: [x + torch.ones(3).to(DEVICE)], "copy from the host"),
        (lambda x: [x.cpu()], "copy to the host"),
        (lambda x: [torch.nonzero(x)], "results do not follow"),
        (lambda x: [x + SECRET], "neither an input"),
        (lambda x: [SECRET], "neither an input"),
        (lambda x: [x, torch.ones(3)], "on cpu"),
        (lambda x: [x + 1, "text"], "neither a tensor"),
        (lambda x: (torch.neuron.synchronize(), [x + 1])[1], "synchronisation"),
    ],
)
def test_what_cannot_be_replayed_runs_each_time(fn: Function, reason: str) -> None:
    graph = _C.CompiledGraph(fn, "host")
    for k in range(6):
        x = torch.arange(3.0, device=DEVICE) + k
        results, expected = graph([x]), fn(x)
        assert all(same(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(results, expected, strict=True))
    stats = graph.stats()
    assert stats["replays"] == 0 and stats["fallbacks"] == 6
    assert any(reason in text for text in stats["fallback_reasons"]), stats["fallback_reasons"]


def test_inputs_that_cannot_be_key() -> None:
    graph = _C.CompiledGraph(lambda x, y: [x, 1], "odd")
    for odd in (torch.ones(3), torch.ones(2).to_sparse(), "text", 2**70):
        x = torch.ones(2, device=DEVICE)
        assert graph([x, odd])[0] is x
    assert graph.stats()["fallbacks"] == 4 and graph.stats()["programs"] == 0


def test_an_error_of_the_function_is_raised_and_nothing_is_kept() -> None:
    def fn(x: torch.Tensor) -> Tensors:
        if x.shape[0] == 3:
            raise ValueError("three")
        return [x + torch.ones(2, device=DEVICE)]

    graph = compiled(fn)
    for _ in range(2):
        with pytest.raises(ValueError, match="three"):
            graph([torch.ones(3, device=DEVICE)])
        with pytest.raises(RuntimeError, match="size of tensor a"):
            graph([torch.ones(5, device=DEVICE)])
    assert graph([torch.ones(2, device=DEVICE)])[0].tolist() == [2, 2]
    assert graph.stats()["programs"] == 1


# ---- errors, memory, streams, threads, graphs ----


def test_an_error_in_a_step_names_it_and_surfaces_once() -> None:
    def fn(x: torch.Tensor, index: torch.Tensor) -> Tensors:
        return [x.index_select(0, index), x + 1]

    graph = compiled(fn)
    x, good, bad = torch.arange(4.0, device=DEVICE), torch.tensor([1, 2]).to(DEVICE), torch.tensor([1, 9]).to(DEVICE)
    graph([x, good])
    result = graph([x, bad])
    with pytest.raises(IndexError, match=r"index out of range in self(.|\n)*aten::index_select"):
        torch.neuron.synchronize()
    torch.neuron.synchronize()
    assert result[1].tolist() == [1, 2, 3, 4]  # as in eager, later calls still run
    assert graph([x, good])[0].tolist() == [1, 2]


def test_out_of_memory_in_a_replay_leaves_everything_usable() -> None:
    def fn(x: torch.Tensor) -> Tensors:
        x.add_(1)
        return [x.repeat(64), x + 1]

    graph = compiled(fn)
    x = torch.zeros(1 << 20, device=DEVICE)
    graph([x])
    torch.neuron.synchronize()
    gc.collect()
    torch.neuron.empty_cache()
    torch.neuron.set_per_process_memory_fraction(32 * 2**20 / torch.neuron.mem_get_info()[1])
    try:
        with pytest.raises(torch.OutOfMemoryError):
            graph([x])
        assert x[0].item() == 1
    finally:
        torch.neuron.set_per_process_memory_fraction(1.0)
    assert graph([x])[1][0].item() == 3


def test_side_streams() -> None:
    graph = compiled(chain)
    x, y = torch.randn(16, 16, device=DEVICE), torch.randn(16, 16, device=DEVICE)
    expected = chain(x, y)
    torch.neuron.synchronize()
    for _ in range(3):
        stream = torch.neuron.Stream()
        with torch.neuron.stream(stream):
            results = graph([x, y])
        stream.synchronize()
        assert all(same(a, b) for a, b in zip(results, expected, strict=True))
    assert graph.stats()["replays"] == 2


def test_from_several_threads() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        return [(x * y).cumsum(0), x - y]

    graph = compiled(fn)
    failures: list[str] = []

    def work(k: int) -> None:
        with torch.neuron.stream(torch.neuron.Stream()):
            for n in range(40):
                x, y = torch.full((5 + n % 3,), float(k), device=DEVICE), torch.full((5 + n % 3,), float(n), device=DEVICE)
                if not all(same(a, b) for a, b in zip(graph([x, y]), fn(x, y), strict=True)):
                    failures.append(f"{k} {n}")

    on_threads(work)
    assert not failures
    assert graph.stats()["programs"] == 3


def test_in_a_backward_pass() -> None:
    forward = _C.CompiledGraph(lambda x: [x.sin()], "forward")
    backward = _C.CompiledGraph(lambda g, x: [g * x.cos()], "backward")

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            ctx.save_for_backward(x)
            return forward([x])[0]

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return backward([grads[0], *ctx.saved_tensors])[0]

    for _ in range(3):
        x = torch.linspace(0, 1, 5).to(DEVICE).requires_grad_()
        Sine.apply(x).sum().backward()
        assert x.grad is not None and same(x.grad, x.detach().cos())
    assert forward.stats()["replays"] == backward.stats()["replays"] == 2


def test_a_launch_is_captured_by_a_graph() -> None:
    def fn(x: torch.Tensor) -> Tensors:
        x.add_(1)
        return [F.dropout((x * 2).exp().log(), 0.5)]

    for warm in (True, False):
        program = compiled(fn)
        x = torch.zeros(64, device=DEVICE)
        if warm:
            program([x.clone()])
        graph = torch.accelerator.Graph()
        torch.neuron.manual_seed(5)
        with torch.Stream(DEVICE), graph:
            (result,) = program([x])
        replays = []
        for _ in range(3):
            graph.replay()
            replays.append(result.clone())
        torch.neuron.synchronize()
        assert x.tolist() == [3.0] * 64
        torch.neuron.manual_seed(5)
        y = torch.zeros(64, device=DEVICE)
        fn(y.clone())  # the words that the capture took
        for replayed in replays:
            assert same(replayed, fn(y)[0])


def test_one_graph_inside_of_another() -> None:
    inner = _C.CompiledGraph(lambda x: [x * 2], "inner")
    outer = _C.CompiledGraph(lambda x: [inner([x + 1])[0] - 1], "outer")
    x = torch.arange(3.0, device=DEVICE)
    for _ in range(3):
        assert outer([x])[0].tolist() == [1, 3, 5]
        assert inner([x])[0].tolist() == [0, 2, 4]
    assert outer.stats()["replays"] == 2 and launches(lambda: outer([x])) == 1


def test_a_graph_that_goes_away_with_work_in_the_queue() -> None:
    x = torch.randn(64, 64, device=DEVICE)
    expected = x
    results = x
    for _ in range(20):
        graph = _C.CompiledGraph(lambda x: [(x @ x).tanh()], "short-lived")
        graph([x])
        results = graph([results])[0]
        expected = (expected @ expected).tanh()
        del graph
        gc.collect()
    assert same(results, expected)
