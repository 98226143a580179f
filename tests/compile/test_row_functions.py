"""Row functions in groups: pointwise calls before and after a row function are one loop with it, with the bits of eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from tests.test_tiles import bits
from torch_neuronx import _C

DEVICE = "neuron"
aten = torch.ops.aten
Tensors = list[torch.Tensor]


@dataclass
class Case:
    function: Callable[..., Tensors]
    shapes: list[tuple[int, ...]]
    groups: int = 1  # of its Program
    kernels: int = 0


CASES = {
    "mask and scale before softmax": Case(lambda s, m: [F.softmax(s * 0.125 + m, -1)], [(2, 3, 40, 37), (40, 37)]),
    "mask of the batch": Case(lambda s, m: [F.softmax(s.masked_fill(m > 0, -1e4), -1) * 2], [(2, 3, 20, 33), (2, 1, 1, 33)], kernels=1),
    "softmax between two chains": Case(lambda s, v: [F.softmax(torch.tanh(s) * 3, -1) * v + s], [(50, 64), (50, 64)]),
    "two softmaxes of one length": Case(lambda s: [F.softmax(F.softmax(s * 2, -1) + s, -1)], [(50, 20)]),
    "two lengths": Case(lambda s, t: [F.softmax(s * 2, -1) + 1, F.softmax(t * 2, -1) + 1], [(6, 20), (4, 30)], groups=2),
    "two lengths, one number of elements": Case(lambda s: [F.softmax(F.softmax(s * 2, -1).view(30, 4) + 1, -1) * 3], [(6, 20)], groups=2),
    "logits are cast and log_softmax taken": Case(lambda x: [F.log_softmax(x.float() * 0.5, -1).exp()], [(30, 1000)]),
    "softmax backward": Case(lambda g, y: [aten._softmax_backward_data(g * 0.9, y, -1, y.dtype) * 0.125], [(40, 37), (40, 37)]),
    "log_softmax backward": Case(lambda g, y: [aten._log_softmax_backward_data(g + 1, y, -1, y.dtype) * 0.5], [(40, 37), (40, 37)]),
    "residual, layer norm, scale": Case(
        lambda x, y, w, b: (lambda h: [h, F.layer_norm(h, (96,), w, b) * 0.5])(x + y), [(2, 20, 96), (2, 20, 96), (96,), (96,)]
    ),
    "layer norm without weights": Case(lambda x: [F.layer_norm(x * 2, (96,)) + x], [(20, 96)]),
    "layer norm with a weight, or a bias": Case(
        lambda x, w: [F.layer_norm(F.layer_norm(x * 2, (96,), w), (96,), None, w)], [(20, 96), (96,)]
    ),
    "layer norm and its moments": Case(
        lambda x, w, b: (lambda r: [r[0] * 2, r[1], r[2]])(torch.native_layer_norm(x - 1, (96,), w, b, 1e-5)), [(20, 96), (96,), (96,)]
    ),
    "who reads the moments is another loop": Case(
        lambda x: (lambda r: [r[0] * 2, x * r[2] - r[1]])(torch.native_layer_norm(x - 1, (96,), None, None, 1e-5)), [(20, 96)], groups=2
    ),
    "layer norm, then softmax of its rows": Case(
        lambda x, w, b: [F.softmax(F.layer_norm(x + 1, (96,), w, b), -1)], [(20, 96), (96,), (96,)]
    ),
    "layer norm of two dimensions": Case(lambda x: [F.layer_norm(x + 1, (12, 8)) * 2], [(20, 12, 8)]),
    "a weight that the group makes": Case(
        lambda x, w: (lambda v: [F.layer_norm(x + v, (96,), v[0]) * v])(w * 2), [(20, 96), (20, 96)], groups=2
    ),
    "another dimension": Case(lambda x: [F.softmax(x * 2, 0) + 1], [(40, 37)], groups=0, kernels=3),
    "rows too long to share L2": Case(lambda x: [F.softmax(x * 2, -1) + 1], [(2, 70_000)], groups=0, kernels=3),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.fixture(autouse=True)
def plain_eager_again() -> Iterator[None]:
    before = _C._set_adaptive_eager(False)
    yield
    _C._set_adaptive_eager(before)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_groups_with_the_bits_of_eager(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype).to(DEVICE) for shape in case.shapes]
    expected = [bits(t) for t in case.function(*inputs)]
    graph = _C.CompiledGraph(case.function, "rows")
    for _ in range(3):
        for got, wanted in zip(graph(list(inputs)), expected, strict=True):
            assert torch.equal(bits(got), wanted)
    stats = graph.stats()
    assert (stats["groups"], stats["kernels"]) == (case.groups, case.kernels)
    _C._set_adaptive_eager(True)
    for _ in range(5):
        for got, wanted in zip(case.function(*inputs), expected, strict=True):
            assert torch.equal(bits(got), wanted)


def test_nothing_but_the_result_is_written() -> None:
    graph = _C.CompiledGraph(lambda s, m: [F.softmax(s * 0.125 + m, -1) * 2], "rows")
    s, m = torch.randn(8, 128, 128, device=DEVICE), torch.randn(128, 128, device=DEVICE)
    for _ in range(2):
        graph([s, m])
    stats = graph.stats()
    assert (stats["steps"], stats["calls"], stats["fused_calls"], stats["temporary_bytes"]) == (1, 4, 4, 0)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_take_whole_rows(threads: int) -> None:
    torch.manual_seed(0)
    s = torch.randn(700, 777, device=DEVICE)
    expected = bits(F.softmax(s * 2, -1) + 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        graph = _C.CompiledGraph(lambda s: [F.softmax(s * 2, -1) + 1], "rows")
        for _ in range(2):
            assert torch.equal(bits(graph([s])[0]), expected)
    finally:
        torch.set_num_threads(before)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(q @ k.transpose(-1, -2) * 0.25 + mask, -1)
    return F.dropout(weights, 0.1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_through_torch_compile(dtype: torch.dtype) -> None:
    """Masked attention and a cast before cross entropy, with gradients."""

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = attention(q, k, v, mask)
        return F.cross_entropy(y.float().flatten(0, 2), target)

    def outcome(function: Callable[..., torch.Tensor]) -> Tensors:
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 2, 24, 16).to(dtype).to(DEVICE).requires_grad_() for _ in range(3))
        mask = torch.zeros(24, 24).masked_fill(torch.ones(24, 24).triu(1) > 0, -1e9).to(dtype).to(DEVICE)
        target = torch.randint(0, 16, (96,)).to(DEVICE)
        value = function(q, k, v, mask, target)
        value.backward()
        return [value.detach(), *(t.grad for t in (q, k, v) if t.grad is not None)]

    expected = outcome(loss)
    compiled = torch.compile(loss, backend="neuron", fullgraph=True)
    for _ in range(3):
        for got, wanted in zip(outcome(compiled), expected, strict=True):
            assert torch.equal(bits(got), bits(wanted))
    _C._set_adaptive_eager(True)
    for _ in range(5):
        for got, wanted in zip(outcome(loss), expected, strict=True):
            assert torch.equal(bits(got), bits(wanted))
