"""Branches and loops over sub-graphs: traced functions, exported graphs, autograd through them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as hop_map

from tests.lowering.check import run_lowered
from torch_neuronx.lowering import Program
from torch_neuronx.lowering.executor import ProgramRun


def branch(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x, y: (x.cos() @ y,), lambda x, y: ((x - 1) @ y.relu(),), (x, y))


def nested_branch(x: torch.Tensor, y: torch.Tensor) -> Any:
    def outer(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cond(y.sum() > 0, lambda x, y: (x + y, x.exp()), lambda x, y: (x - y, y.exp()), (x, y))

    return torch.cond(x.sum() > 0, outer, lambda x, y: (x * y, x / 2), (x, y))


def collatz(number: torch.Tensor, steps: torch.Tensor) -> Any:
    """A loop whose length depends on data."""
    return while_loop(
        lambda number, steps: number > 1,
        lambda number, steps: (torch.where(number % 2 == 0, number // 2, 3 * number + 1), steps + 1),
        (number, steps),
    )


def newton(x: torch.Tensor, target: torch.Tensor) -> Any:
    """A loop with a tensor that it only reads."""
    return while_loop(
        lambda x, target, count: (count < 20) & ((x * x - target).abs().max() > 1e-6),
        lambda x, target, count: (x - (x * x - target) / (2 * x), target.clone(), count + 1),
        (x, target, torch.zeros((), dtype=torch.int64)),
    )


def recurrence(state: torch.Tensor, inputs: torch.Tensor) -> Any:
    return scan(lambda state, x: (torch.tanh(state + x), state * x), state, inputs)


def backwards(state: torch.Tensor, inputs: torch.Tensor) -> Any:
    return scan(lambda state, x: (state * 0.5 + x, state.sin()), state, inputs, reverse=True)


def products(x: torch.Tensor, _y: torch.Tensor) -> Any:
    return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")


def mapped(x: torch.Tensor, y: torch.Tensor) -> Any:
    return hop_map(lambda row, y: row @ y, x, y)


def square(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(2, 2)


CASES: dict[str, tuple[Callable[..., Any], list[tuple[torch.Tensor, torch.Tensor]]]] = {
    "cond": (branch, [(square(1, 2, 3, 4), square(1, -1, 2, 1)), (square(-1, -2, 1, 0), square(1, -1, 2, 1))]),
    "nested cond": (nested_branch, [(square(a, 2, b, 4), square(c, -1, 2, 1)) for a, b, c in ((1, 1, 1), (1, 1, -9), (-9, -9, 1))]),
    "while_loop": (collatz, [(torch.tensor(number), torch.tensor(0)) for number in (1, 6, 27)]),
    "while_loop of vectors": (newton, [(torch.ones(3), torch.tensor([2.0, 9.0, 0.25]))]),
    "scan": (recurrence, [(torch.zeros(3), torch.randn(5, 3))]),
    "scan in reverse": (backwards, [(torch.zeros(3), torch.randn(5, 3))]),
    "associative_scan": (products, [(torch.rand(6, 2), torch.zeros(1))]),
    "map": (mapped, [(torch.randn(4, 3), torch.randn(3))]),
}


def leaves(result: Any) -> list[torch.Tensor]:
    return [leaf.detach() for leaf in torch.utils._pytree.tree_leaves(result)]


@pytest.mark.parametrize("name", CASES)
def test_traced(name: str) -> None:
    """One module serves all data: it is run on each input, and lowered for the first."""
    from torch_neuronx.lowering.emit import trace_function
    from torch_neuronx.lowering.execute import CompiledModule
    from torch_neuronx.lowering.hlo import to_hlo

    function, inputs = CASES[name]
    module = CompiledModule(to_hlo(trace_function(function, inputs[0])[0]))
    for given in inputs:
        torch.testing.assert_close(module.run(given), leaves(function(*given)))


@pytest.mark.parametrize("name", CASES)
def test_exported_graph(name: str) -> None:
    """As torch.compile hands them over: sub-graphs are attributes of the graph."""

    class Module(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            return CASES[name][0](*given)

    inputs = CASES[name][1]
    exported = torch.export.export(Module(), inputs[0]).run_decompositions()
    run = ProgramRun(Program.from_graph(exported.graph_module, inputs[0]))
    for given in inputs:
        torch.testing.assert_close(run(*given), leaves(CASES[name][0](*given)))


def test_gradients_through_a_branch() -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.autograd.grad(branch(x, y)[0].square().sum(), (x, y))

    for sign in (1.0, -1.0):
        given = [(sign * torch.rand(2, 2)).requires_grad_(), torch.rand(2, 2).requires_grad_()]
        torch.testing.assert_close(run_lowered(loss, given), list(loss(*given)))
