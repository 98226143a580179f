"""Groups: many calls as one loop over tiles, with the bits of eager."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.test_tiles import bits
from torch_neuronx import _C

DEVICE = "neuron"
Tensors = list[torch.Tensor]

UNARY = [
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.abs,
    torch.neg,
    F.gelu,
    F.silu,
    torch.relu,
    torch.sin,
    lambda a: a * 0.7,
    lambda a: a + 1,
]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: torch.where(a > b, a, b), lambda a, b: torch.lerp(a, b, 0.3)]


def chain(seed: int, steps: int = 25) -> Any:
    """A random program on two or more tensors of one shape; some values are updated in place, some are returned."""

    def run(*inputs: torch.Tensor) -> Tensors:
        rng = random.Random(seed)
        values = list(inputs)
        for _ in range(steps):
            kind = rng.random()
            a, b = rng.choice(values), rng.choice(values)
            if kind < 0.45:
                values.append(rng.choice(UNARY)(a))
            elif kind < 0.85:
                values.append(rng.choice(BINARY)(a, b))
            else:
                rng.choice(values[len(inputs) :] or values).mul_(b)
        return [value for value in values[len(inputs) :] if rng.random() < 0.2] + [values[-1]]

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(7,), (40_003,), (64, 300)], ids=str)
def test_random_programs_have_the_bits_of_eager(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        inputs = [torch.randn(shape).to(dtype).to(DEVICE) for _ in range(2)]
        if len(shape) == 2:
            inputs[1] = torch.randn(shape[::-1]).to(dtype).to(DEVICE).t()
        function = chain(seed)
        graph = _C.CompiledGraph(function, f"chain{seed}")
        expected = function(*[t.clone() for t in inputs])
        for _ in range(3):
            arguments = [t.clone() for t in inputs]
            actual = graph(list(arguments))
            for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
                assert torch.equal(bits(a), bits(e)), f"seed {seed}, result {k}"


def test_a_chain_is_one_step_without_temporaries() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        return [torch.tanh(torch.exp(-x) * y + 2.0).clamp(-1, 1) / (1 + y.abs())]

    graph = _C.CompiledGraph(function, "chain")
    x, y = torch.randn(5000, device=DEVICE), torch.randn(5000, device=DEVICE)
    for _ in range(2):
        graph([x, y])
    stats = graph.stats()
    assert (stats["steps"], stats["groups"], stats["kernels"], stats["temporary_bytes"]) == (1, 1, 0, 0)
    assert stats["calls"] == stats["fused_calls"] == 9


def test_groups_go_around_whole_kernels() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        h = torch.relu(x + 1)
        y = h @ w
        return [torch.exp(y) * 2, h * 3]

    graph = _C.CompiledGraph(function, "around")
    x, w = torch.randn(30, 40, device=DEVICE), torch.randn(40, 20, device=DEVICE)
    expected = function(x, w)
    for _ in range(2):
        actual = graph([x, w])
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))
    stats = graph.stats()
    assert (stats["groups"], stats["kernels"]) == (2, 1)  # x + 1, relu, * 3 run before the product


def test_an_optimizer_update_is_one_group_for_each_tensor() -> None:
    def update(*tensors: torch.Tensor) -> Tensors:
        n = len(tensors) // 4
        p, g, m, v = (list(tensors[i * n : (i + 1) * n]) for i in range(4))
        torch._foreach_mul_(p, 0.99)
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_mul_(v, 0.9)
        torch._foreach_addcmul_(v, g, g, value=0.1)
        root = torch._foreach_sqrt(v)
        torch._foreach_add_(root, 1e-8)
        torch._foreach_addcdiv_(p, m, root, value=-0.01)
        return []

    sizes = [3, 1000, 4097]
    start = [torch.rand(size, device=DEVICE) for _ in range(4) for size in sizes]
    eager, cpu, here = [t.clone() for t in start], [t.cpu() for t in start], [t.clone() for t in start]
    graph = _C.CompiledGraph(update, "update")
    for _ in range(3):
        update(*eager), update(*cpu), graph(list(here))
    for a, e, c in zip(here, eager, cpu, strict=True):
        assert torch.equal(a, e)
        torch.testing.assert_close(a.cpu(), c)
    stats = graph.stats()
    assert (stats["groups"], stats["kernels"], stats["temporary_bytes"]) == (3, 0, 0)


def test_memory_that_overlaps_keeps_its_order() -> None:
    def function(x: torch.Tensor) -> Tensors:
        before = x[1:] + x[:-1]
        x.mul_(2)
        after = x[1:] + x[:-1]
        x[::2].add_(1)
        return [before, after, x * 1]

    graph = _C.CompiledGraph(function, "order")
    for _ in range(3):
        x = torch.arange(5001.0, device=DEVICE)
        expected = function(x.clone())
        actual = graph([x])
        assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


def test_threads_do_not_change_results() -> None:
    function = chain(11)
    x, y = torch.randn(300_001, device=DEVICE), torch.randn(300_001, device=DEVICE)
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            graph = _C.CompiledGraph(function, "threads")
            for _ in range(2):
                result = graph([x.clone(), y.clone()])
            results.append([bits(t) for t in result])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_tensors_of_one_foreach_call_may_overlap() -> None:
    """Those that have nothing to do with each other run at the same time, the others one after another."""

    def run(device: str) -> Tensors:
        a, b = torch.arange(100_000.0).to(device), torch.arange(50_000.0).to(device)
        for _ in range(5):
            torch._foreach_mul_([a, b, a, a[50_000:], b], [2.0, 3.0, 0.5, 1.5, 0.25])
            torch._foreach_add_([a[:50_000], b], [b, a[50_000:]])
        return [a.cpu(), b.cpu()]

    torch.set_num_threads(max(2, threads := torch.get_num_threads()))
    try:
        ours = run(DEVICE)
    finally:
        torch.set_num_threads(threads)
    for got, wanted in zip(ours, run("cpu"), strict=True):
        assert torch.equal(got, wanted)
