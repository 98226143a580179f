"""``torch_neuronx.buckets()``: what is rounded up, what is refused and why, and that nothing else changes. See docs/dev/buckets.md."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_neuronx
from tests.compile.padding import difference
from torch_neuronx._buckets import buckets as setting
from torch_neuronx.compile import registry
from torch_neuronx.compile.padding.run import Bucketed

_earlier: set[int] = set()


@pytest.fixture(autouse=True)
def one_test_at_a_time():
    _earlier.clear()
    _earlier.update(code.number for code in registry.graphs())
    yield
    torch_neuronx.buckets(False)


def _parts() -> list[Bucketed]:
    """The parts with symbolic sizes that this test has compiled."""
    codes = [code for code in registry.graphs() if code.number not in _earlier]
    return [graph for code in codes for graph in code.graphs.values() if isinstance(graph, Bucketed)]


def _refusals(function: Any, *inputs: torch.Tensor) -> list[str]:
    """Why sizes of a function stay exact; its results under buckets are compared with eager's."""
    compiled = torch.compile(function, backend="neuron", dynamic=True, fullgraph=True)
    with torch_neuronx.buckets(min=16):
        torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)
    return [why for part in _parts() for why in part.plan.refused.values()]


@pytest.mark.parametrize(
    ("given", "size", "dim", "bucket"),
    [
        ({}, 1, 0, 1),
        ({}, 33, 0, 64),
        ({}, 64, 0, 64),
        ({"min": 20}, 3, 0, 32),
        ({"max": 50}, 33, 0, 50),
        ({"max": 50}, 51, 0, None),
        ({"sizes": [512, 100]}, 33, 0, 100),
        ({"sizes": [512, 100]}, 101, 0, 512),
        ({"sizes": [512, 100]}, 513, 0, None),
        ({"dims": 1}, 33, 1, 64),
        ({"dims": [1]}, 33, 0, None),
    ],
)
def test_choice(given, size, dim, bucket):
    with torch_neuronx.buckets(**given):
        policy = setting.current()
        assert policy is not None and policy.choose(size, dim)[0] == bucket
    assert setting.current() is None


def test_setting_and_block():
    torch_neuronx.buckets([8])
    with torch_neuronx.buckets(False):
        assert setting.current() is None
    assert setting.current() is not None and setting.current().sizes == (8,)


@pytest.mark.parametrize(
    ("args", "given", "what"),
    [
        (([],), {}, "has no sizes"),
        (([0],), {}, "from 1 on"),
        ((64,), {}, "a list of sizes"),
        (([64],), {"min": 3}, "not both"),
        ((False,), {"max": 3}, "has no meaning"),
        ((), {"min": 9, "max": 3}, "min is larger"),
        ((), {"dims": [-1]}, "from 0 on"),
    ],
)
def test_bad_input(args, given, what):
    with pytest.raises((ValueError, TypeError), match=what):
        torch_neuronx.buckets(*args, **given)
    assert setting.current() is None


def test_lengths_share_programs_forward_and_backward():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)).to("neuron")

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (model(x).softmax(1) * x.mean(1, keepdim=True)[..., :3]).square().mean()

    compiled = torch.compile(loss, backend="neuron", dynamic=True)
    with torch.neuron.explain() as report, torch_neuronx.buckets():
        for length in range(2, 34):
            x = torch.randn(2, length, 4).to("neuron")
            wanted = torch.autograd.grad(loss(x), list(model.parameters()))
            torch._dynamo.mark_static(x, 0)
            found = torch.autograd.grad(compiled(x), list(model.parameters()))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    parts = _parts()
    assert len(parts) == 2 and not any(part.plan.refused for part in parts)
    for part in parts:
        assert part.padded.stats()["programs"] == 6  # 2, 4, 8, 16, 32, 64
        assert part.padded.stats()["fallbacks"] == part.exact.stats()["misses"] == 0
    assert "sizes in buckets" in str(report) and "L['x'].size(1) in 32" in str(report)
    (graph,) = [graph for graph in report.as_dict()["compile"]["graphs"] if graph["name"].startswith("forward")]
    assert graph["bucketed"]["L['x'].size(1) in 32"] == 16 and not graph["exact"]


def test_off_is_exact():
    x = torch.randn(5, 4, device="neuron")
    compiled = torch.compile(lambda x: x.cumsum(0).sum(0), backend="neuron", dynamic=True)
    exact = compiled(x)
    (part,) = _parts()
    assert not part.bucketed and part.padded.stats()["misses"] == 0
    with torch_neuronx.buckets():
        torch.testing.assert_close(compiled(x), exact)
    assert part.bucketed == {"L['x'].size(0) in 8": 1, "L['x'].size(1) in 4": 1}


def test_dims_and_sizes_without_a_bucket():
    x = torch.randn(5, 6, device="neuron")
    compiled = torch.compile(lambda x: x.exp().sum(1), backend="neuron", dynamic=True)
    with torch_neuronx.buckets(dims=1):
        torch.testing.assert_close(compiled(x), x.exp().sum(1))
    (part,) = _parts()
    assert part.bucketed == {"L['x'].size(1) in 8": 1}
    assert part.stayed_exact == {"L['x'].size(0): dimension 0 is not one of dims=[1]": 1}
    with torch.neuron.explain() as report, torch_neuronx.buckets([4]):
        compiled(x)
    assert "L['x'].size(1): 6 is larger than the largest bucket, 4" in str(report)
    assert part.exact.stats()["misses"] == 1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: torch.cat([x, x]), "aten.cat.default: it joins along dimension 0, which would be padded"),
        (lambda x: x.flip(0), "aten.flip.default: it works along dimension 0"),
        (lambda x: x.roll(1, 0), "aten.roll.default: it works along dimension 0"),
        (lambda x: x.sort(0).values, "aten.sort.default: it works along dimension 0"),
        (lambda x: x[1:], "aten.slice.Tensor: it takes a part"),
        (lambda x: x.var(0), "aten.var.correction: it works along dimension 0"),
        (lambda x: x.mul_(2) + 1, "it writes into its arguments"),
        (lambda x: x.unfold(0, 2, 1).sum(), ""),
    ],
)
def test_refused(function, why):
    x = torch.randn(5, 4).to("neuron")
    torch._dynamo.mark_static(x, 1)
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    torch._dynamo.mark_dynamic(x, 0)
    y = x.clone()
    with torch_neuronx.buckets():
        torch.testing.assert_close(compiled(x), function(y))
        torch.testing.assert_close(x, y)
    told = [text for part in _parts() for text in part.plan.refused.values()]
    assert told and any(why in text for text in told), told


def test_random_numbers_are_those_of_the_exact_size():
    x = torch.randn(5, 4, device="neuron")
    why = []
    for on in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="neuron", dynamic=True)
        with torch_neuronx.buckets(on):
            torch.manual_seed(0)
            why.append(compiled(x))
    assert torch.equal(*why)
    assert any("it draws random numbers" in text for part in _parts() for text in part.plan.refused.values())


def test_one_dimension_refused_the_other_not():
    x = torch.randn(5, 6, 3, device="neuron")
    told = _refusals(lambda x: x.flip(1).cumsum(0), x)
    assert len(told) == 1 and "aten.flip" in told[0] and "test_buckets.py" in told[0]
    (part,) = _parts()
    assert set(part.bucketed) == {"L['x'].size(0) in 16", "L['x'].size(2) in 16"}


def test_not_finite_elements_do_not_leak():
    """0 * inf is NaN: the padding of both operands of a product must be clean."""
    x = torch.tensor([[1.0, 2.0, 3.0]]).to("neuron")  # of padding with zeros, 1 / x is inf and x.log().exp() 0
    told = _refusals(lambda x: x.reciprocal() @ x.t().log().exp(), x.expand(3, 3).contiguous())
    assert not told


def test_a_table_limits_the_bucket():
    table = torch.randn(12, 4, device="neuron")
    x = torch.randn(9, 4, device="neuron")
    compiled = torch.compile(lambda x, table: x + table[: x.shape[0]], backend="neuron")
    torch._dynamo.mark_dynamic(x, 0)
    with torch_neuronx.buckets():
        torch.testing.assert_close(compiled(x, table), x + table[:9])
    (part,) = _parts()
    assert part.bucketed == {"L['x'].size(0) in 12": 1}


def test_inputs_that_are_not_dense_and_results_in_another_order():
    base = torch.randn(6, 20, device="neuron")
    for view in (base[:, ::2], base.t(), base[1:4, 2:9]):
        torch.compiler.reset()  # each as the first that is compiled
        assert not _refusals(lambda x: (x * 2, x.t() + 1, x[:, -1]), view)


def test_numbers_that_python_computes_from_sizes():
    x = torch.randn(5, 4, device="neuron")
    assert not _refusals(lambda x: x * (2.0 / (x.shape[0] + 1)) + x.shape[1] / x.numel(), x)


@pytest.mark.parametrize("seed", [3, 17])
def test_random_graphs(seed):
    assert difference(seed, Counter()) is None


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_many_random_graphs():
    told: Counter[str] = Counter()
    found = [text for seed in range(100, 200) if (text := difference(seed, told))]
    assert not found, "\n".join(found)
    assert told["padded"] > told["graphs"] // 3
