"""Numbers in host memory are computed with many at a time, with eager's bits."""

import pytest
import torch

from torch_neuronx.compile import host_scalars

DEVICE = "neuron"


@pytest.fixture
def joined(monkeypatch):
    counts = []
    join = host_scalars.join
    monkeypatch.setattr(host_scalars, "join", lambda gm: counts.append(join(gm)))
    return counts


def updated(optimizer, parameters, backend):
    torch.manual_seed(0)
    parameters = [torch.randn(5, 3).to(DEVICE).requires_grad_() for _ in range(parameters)]
    optimizer = optimizer(parameters)
    step = torch.compile(optimizer.step, backend=backend)
    for i in range(8):
        for p in parameters:
            p.grad = p.detach() * 0.1 + i
        step()
    counts = [optimizer.state[p]["step"] for p in parameters]
    return [p.detach().cpu().view(torch.int32) for p in parameters] + [count.view(torch.int32) for count in counts]


@pytest.mark.parametrize(
    ("optimizer", "parameters", "expected"),
    [
        (lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True), 6, 7),
        (lambda p: torch.optim.NAdam(p, lr=1e-3, foreach=True), 5, None),
        (lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True), 3, 0),
    ],
    ids=["adamw", "nadam", "too few"],
)
def test_optimizers(optimizer, parameters, expected, joined):
    # Not against the step alone: PyTorch computes its factors in Python then, in double precision.
    call_by_call = updated(optimizer, parameters, "aot_eager")
    torch.compiler.reset()
    for a, b in zip(updated(optimizer, parameters, "neuron"), call_by_call, strict=True):
        assert torch.equal(a, b)
    if expected is not None:
        assert max(joined) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_operation(dtype, joined):
    def function(x, numbers):
        a = torch._foreach_mul(torch._foreach_sub(torch._foreach_add(numbers, 0.3), 1.7), 1.1)
        b = torch._foreach_sqrt(torch._foreach_neg(torch._foreach_reciprocal(torch._foreach_div(a, 3.0))))
        return [x * one for one in a] + [x + one for one in b]

    numbers = list(torch.linspace(-3, 1.3, 21).to(dtype).unbind())  # a vector and a rest
    x = torch.ones(3, device=DEVICE, dtype=dtype)
    for got, wanted in zip(torch.compile(function, backend="neuron", fullgraph=True)(x, numbers), function(x, numbers), strict=True):
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))
    assert joined == [7]


def test_results_that_leave_the_graph_keep_storages_of_their_own(joined):
    def function(x, numbers):
        kept = torch._foreach_add(numbers, 1.0)
        return [x * one for one in torch._foreach_mul(kept, 2.0)], kept

    numbers = [torch.tensor(float(i)) for i in range(5)]
    products, kept = torch.compile(function, backend="neuron", fullgraph=True)(torch.ones(2, device=DEVICE), numbers)
    assert [float(one) for one in kept] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [one[0].item() for one in products] == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert len({one.untyped_storage().data_ptr() for one in kept}) == 5
    assert joined == [1]
