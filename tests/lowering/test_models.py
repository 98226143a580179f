"""Whole models: a training step as one Program, forward, backward and update in place, equal to PyTorch over several steps."""

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.lowering.models import MODELS, gpt, training_step
from torch_neuronx.lowering import Program, lower
from torch_neuronx.lowering.executor import ProgramRun
from torch_neuronx.lowering.hlo import aliases_of, hlo_text


def graph_of_step(model: torch.nn.Module, inputs: Any) -> tuple[Any, Program, list[torch.Tensor]]:
    step, state = training_step(model)
    given = [*inputs, *state]
    graph = make_fx(step)(*(tensor.clone() for tensor in given))
    return step, Program.from_graph(graph, given), state


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "GPT" else [pytest.mark.full]) for name in MODELS])
@pytest.mark.timeout(900)
def test_training_step(name: str) -> None:
    torch.manual_seed(0)
    build, data = MODELS[name]
    inputs = data()
    step, program, state = graph_of_step(build(), inputs)
    run = ProgramRun(program)
    ours, theirs = [value.clone() for value in state], [value.clone() for value in state]
    for _ in range(3):
        (loss,), wanted = run(*inputs, *ours), step(*inputs, *theirs)
        torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-4)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    written = [index for index, (a, b) in enumerate(zip(theirs, state, strict=True)) if not torch.equal(a, b)]
    assert run.lowered.written == [index + 2 for index in written]  # the inputs and targets come first
    assert aliases_of(hlo_text(run.lowered.hlo())) == dict(enumerate(run.lowered.written))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", ["portable", "trn2"])
def test_work_grows_with_the_layers_and_no_more(target: str) -> None:
    """A training step is traced once, and each further layer costs the same number of lowered calls. (How long it takes:
    ``python -m benchmarks lowering``.)"""
    inputs = (torch.randint(0, 50, (2, 16)), torch.randint(0, 50, (32,)))
    rows, calls = {}, {}
    for layers in (1, 2, 4):
        _, program, _ = graph_of_step(gpt(layers=layers), inputs)
        lowered = lower(program, target)
        assert not lowered.specialised
        rows[layers], calls[layers] = len(lowered.calls), len(program.calls)
    assert rows[4] - rows[2] == 2 * (rows[2] - rows[1]) > 0
    assert rows[4] < 1.2 * calls[4]  # nearly every call is a row of its own; few are decomposed


def test_one_operator_loads_few_dialects(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's own contexts load every dialect of MLIR, which takes as long as the rest of the lowering of one operator."""
    from jax._src.interpreters import mlir

    made = []
    monkeypatch.setattr(mlir, "make_ir_context", lambda: made.append(1))
    lower(Program.from_call(torch.ops.aten.add.Tensor, (torch.rand(4), torch.rand(4))))
    assert not made
