"""A compiled model trains as the eager one does, bit for bit."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from examples.train_gpt import ALPHABET, GPT, Config

DEVICE = "neuron"


def gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(Config(layers=2, heads=2, width=32, context=16, dropout=dropout)).to(DEVICE)


def batch(length: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.randint(len(ALPHABET), (4, length + 1), generator=torch.Generator().manual_seed(length))
    return numbers[:, :-1].to(DEVICE), numbers[:, 1:].to(DEVICE)


def train(model: nn.Module, lengths: list[int], autocast: bool = False) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for length in lengths:
        x, y = batch(length)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_losses_and_weights_are_those_of_eager(dropout):
    model = gpt(dropout)
    twin = copy.deepcopy(model)
    expected, actual = train(model, [16] * 4), train(torch.compile(twin, backend="neuron", fullgraph=True), [16] * 4)
    assert actual == expected and expected[-1] < expected[0]
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


def test_autocast():
    model = gpt()
    twin = copy.deepcopy(model)
    assert train(torch.compile(twin, backend="neuron"), [16] * 3, autocast=True) == train(model, [16] * 3, autocast=True)


def test_dynamic_lengths():
    model = gpt()
    twin = copy.deepcopy(model)
    lengths = [16, 7, 12, 5, 9]
    compiled = torch.compile(twin, backend="neuron", dynamic=True)
    assert train(compiled, lengths) == train(model, lengths)


def test_whole_step_with_graph_breaks():
    def step(model, x, y):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        torch._dynamo.graph_break()
        return loss * 2

    model, (x, y) = gpt(), batch()
    expected = step(model, x, y)
    assert torch.equal(torch.compile(step, backend="neuron")(model, x, y), expected)


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": True, "amsgrad": True}], ids=str)
def test_compiled_optimizer_is_one_program(options):
    """Step counts lie on the CPU: what happens to them does not cut the update of the parameters.

    PyTorch's optimizers take another path for step counts when they are compiled, so PyTorch's own "aot_eager" is what ours has to equal.
    """
    outcomes = []
    for backend in ("aot_eager", "neuron"):
        torch.compiler.reset()
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(shape).to(DEVICE)) for shape in ((40, 30), (7,), (1,))]
        optimizer = torch.optim.AdamW(parameters, lr=1e-2, **options)
        step = torch.compile(optimizer.step, backend=backend)
        for _ in range(3):
            for p in parameters:
                p.grad = torch.randn(p.shape).to(DEVICE)
            with torch.neuron.explain() as report:
                step()
        outcomes.append([value for p in parameters for value in (p.detach(), *optimizer.state[p].values())])
    for actual, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    counted = report.as_dict()
    assert (report.recompiles, counted["compiled"]["launches"]) == (0, 1)


def test_random_state_in_compiled_code():
    """What Dynamo meets of torch.neuron is called, not traced: CPU code that keeps the random state must compile, too."""

    def f(x):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return F.dropout(x, 0.5)

    for device in ("cpu", DEVICE):
        x = torch.ones(8, 8, device=device)
        assert torch.equal(torch.compile(f, backend="eager")(x), f(x))
    assert torch.compile(lambda x: x + torch.neuron.device_count(), backend="eager", fullgraph=True)(torch.zeros(1)).item() == 4
