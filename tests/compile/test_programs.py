"""What kinds of programs compile, and give eager's bits: recorded, replayed, with gradients and with what they write."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_op
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import _create_empty_block_mask
from torch.utils.checkpoint import checkpoint

from torch_neuronx.compile import registry

DEVICE = "neuron"


def on_device(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE).requires_grad_(grad)


@dataclass
class Case:
    """A function of a float32 [4, 6] tensor on the device that requires a gradient, and of ``more``."""

    function: Callable[..., Any]
    more: Callable[[], tuple[Any, ...]] = tuple
    cuts: int = 0  # nodes of its graphs that are no part of a Program
    dynamic: bool | None = None
    fullgraph: bool = True


@torch.library.custom_op("neuron_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().cpu().numpy() * 2).to(x.device)


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, gradient: gradient * 2)


@torch.library.custom_op("neuron_test::add_to", mutates_args=("y",))
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    y.add_(x)


def writes_inputs(x, y, z):
    y.add_(x.detach())
    z[1:] = 2
    y[0] = 1
    return x * y.sum() + z.t().reshape(4, 6)


def counts(x, steps):
    steps.add_(1)
    return x * steps


def updates_in_turn(x, m, v, steps):
    """Results that go to memory whose old value is still wanted, or is wanted no more."""
    old = m * 2
    m.copy_(v + x.detach())
    v.copy_(old + m)
    steps.add_(v.shape[0])
    m.sub_(old).mul_(steps)
    v.copy_(m)
    return x * v + old


def loop(x):
    return while_loop(
        lambda i, y: i < 4, lambda i, y: (i + 1, y * 1.5 + i), (torch.zeros((), dtype=torch.int64, device=DEVICE), x.detach())
    )


def unbacked(x):
    n = x.detach().abs().sum().long().item()
    torch._check(n >= 0)
    torch._check(n < 1000)
    return torch.arange(n, device=DEVICE) * 2, x * n


def autocast(x):
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return (x @ x.t()).float()


def dropout_checkpointed(x):
    return checkpoint(lambda y: F.dropout(y.sin(), 0.5) * y, x, use_reentrant=False)


CASES = {
    "constants": Case(lambda x: x * torch.tensor(2.0) + torch.tensor([1.0, 2, 3, 4, 5, 6], device=DEVICE) + torch.arange(6).to(DEVICE)),
    "view results": Case(lambda x: (x.t(), x[1:], x * 2)),
    "results that are inputs, numbers and None": Case(lambda x: (x, x.shape[0], None, 3.5, x + 1), dynamic=True),
    "writes inputs": Case(writes_inputs, lambda: (on_device(4, 6), on_device(6, 4))),
    "writes a CPU scalar": Case(counts, lambda: (torch.tensor(1.0),)),
    "updates in both orders": Case(updates_in_turn, lambda: (on_device(4, 6), on_device(4, 6), torch.tensor(3.0))),
    "random numbers": Case(lambda x: x + torch.rand_like(x) + torch.randn(6, device=DEVICE) * F.dropout(x, 0.3)),
    "checkpoint": Case(lambda x: checkpoint(lambda y: y.sin().exp() * y, x, use_reentrant=False)),
    "checkpoint with dropout": Case(dropout_checkpointed, cuts=2),
    "autocast": Case(autocast),
    "value read by the host": Case(lambda x: x * x.detach().sum().item()),
    "copy to the host and back": Case(lambda x: (x.sum().cpu() * 2).to(DEVICE) + x, cuts=3),
    "data-dependent shape": Case(lambda x: x[x > 0] * 2, cuts=3),
    "size from data": Case(unbacked, cuts=4),
    "cond": Case(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (x,)), cuts=2),
    "while_loop": Case(loop, cuts=1),
    "scan": Case(lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(6, device=DEVICE), x)),
    "associative scan": Case(lambda x: associative_scan(lambda a, b: a * b, x.detach(), 0, combine_mode="generic")),
    "custom operator in Python": Case(lambda x: twice(x.sin()) + 1, cuts=2),
    "custom operator that writes": Case(lambda x, y: (add_to(x.detach(), y), y * 2)[1], lambda: (on_device(4, 6),), cuts=2),
    "complex numbers": Case(lambda x: torch.fft.fft(x).abs()),
    "linear algebra": Case(lambda x: torch.linalg.solve(x @ x.t() + torch.eye(4, device=DEVICE), x), cuts=1),
    "lists": Case(lambda x: [y * 2 for y in torch.split(x, 2)]),
    "dynamic sizes": Case(lambda x: x.reshape(-1, 2) @ torch.ones(2, x.shape[0], device=x.device), dynamic=True),
    "a float argument": Case(lambda x, s: x * s + s, lambda: (2.5,)),
    "an int argument": Case(lambda x, n: x * n, lambda: (3,), dynamic=True),
    "two devices": Case(lambda x: (x.to("neuron:1") * 2).to("neuron:0"), cuts=4),
    "graph break": Case(lambda x: (torch._dynamo.graph_break(), x.sin() * 2)[1], fullgraph=False),
    "sparse inside": Case(lambda x: x.detach().to_sparse().to_dense() * 2, fullgraph=False),
}


def outcome(function: Callable[..., Any], case: Case) -> list[Any]:
    """Results, gradients, and what became of the arguments."""
    arguments = [on_device(4, 6, grad=True), *case.more()]
    torch.manual_seed(7)
    result = function(*arguments)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    losses = [value.float().sum() for value in results if isinstance(value, torch.Tensor) and value.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    return [*results, arguments[0].grad, *arguments, torch.neuron.get_rng_state()]


@pytest.mark.parametrize("name", CASES)
def test_compiled_is_eager(name: str) -> None:
    warnings.simplefilter("ignore")
    case = CASES[name]
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(case.function, backend="neuron", fullgraph=case.fullgraph, dynamic=case.dynamic)
        expected = outcome(case.function, case)
        known = {graph.number for graph in registry.graphs()}
        for _ in ("recorded", "replayed", "replayed"):
            for got, wanted in zip(outcome(compiled, case), expected, strict=True):
                if not isinstance(wanted, torch.Tensor):
                    assert type(got) is type(wanted) and got == wanted
                    continue
                assert (got.device, got.dtype, got.shape) == (wanted.device, wanted.dtype, wanted.shape)
                torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    graphs = [
        graph for graph in registry.graphs() if graph.number not in known and "_graph_" not in graph.kind and "_fn_" not in graph.kind
    ]
    if case.fullgraph:
        cuts = {reason: count for graph in graphs for reason, count in graph.cuts.items() if "_assert_" not in reason}
        assert (sum(cuts.values()) > 0) == (case.cuts > 0), cuts


def test_flex_attention_operator() -> None:
    """PyTorch's function refuses devices that are not in its list; its operator does not, and is a part of Programs."""
    q = on_device(1, 2, 16, 8)

    def causal(score, batch, head, i, j):
        return torch.where(i >= j, score, -float("inf"))

    mask = _create_empty_block_mask(q, q).as_tuple()

    def attend(q):
        return flex_attention_op(q, q, q, causal, mask, 0.5, {})[0]

    compiled = torch.compile(attend, backend="neuron", fullgraph=True)
    expected = F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.5)
    with torch.neuron.explain() as report:
        for _ in range(3):
            torch.testing.assert_close(compiled(q), expected, rtol=1e-5, atol=1e-5)
    (graph,) = report.as_dict()["compile"]["graphs"]
    assert graph["cuts"] == {} and graph["replays"] == 2, report


def test_operators_of_others_without_a_kernel_are_refused(run_python):
    code = """
import torch
library = torch.library.Library("foreign", "DEF")
library.define("half(Tensor x) -> Tensor")
library.impl("half", lambda x: x / 2, "CPU")
torch.library.register_fake("foreign::half", torch.empty_like)
x = torch.ones(3, device="neuron")
f = lambda x: torch.ops.foreign.half(x) + 1
try:
    print(torch.compile(f, backend="neuron")(x).tolist())
except Exception as error:
    print(type(error).__name__, str(error).split(":")[2].strip()[:20], "fallback_execution" in str(error))
print(torch.compile(f, backend="neuron", options={"fallback_execution": True})(x).tolist())
"""
    run = run_python(code, TORCH_NEURONX_FALLBACK=None, timeout=180)
    first, second = run.stdout.splitlines()
    assert first.startswith("BackendCompilerFailed foreign") and first.endswith("True"), run.stderr
    assert second == "[1.5, 1.5, 1.5]" and "foreign::half runs on the host" in run.stderr
    run = run_python(code, TORCH_NEURONX_FALLBACK="allow", timeout=180)
    assert run.stdout.splitlines() == ["[1.5, 1.5, 1.5]"] * 2, run.stderr


def test_what_is_computed_twice_is_computed_once() -> None:
    table, place, x = on_device(16, 8), torch.tensor([3], device="neuron"), on_device(16, 8)

    @torch.no_grad()
    def rotate(x):
        return (x * table[place].cumsum(1)).sum(0), (x.neg() * table[place].cumsum(1)).sum(0)

    compiled = torch.compile(rotate, backend="neuron", fullgraph=True)
    expected = rotate(x)
    compiled(x)
    with torch.neuron.explain() as report:
        results = compiled(x)
    assert all(torch.equal(got, wanted) for got, wanted in zip(results, expected, strict=True))
    assert report.as_dict()["compiled"]["calls"] == 7, report  # not 9: one index, one cumsum
