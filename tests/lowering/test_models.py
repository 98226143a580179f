"""Whole models: a training step as one Program, forward, backward and update in place, equal to PyTorch over several steps."""

import statistics
import time
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.lowering.models import MODELS, gpt, training_step
from tests.lowering.run import ProgramRun
from torch_neuronx.lowering import Program, lower
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


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", ["portable", "trn2"])
def test_lowering_time_of_a_12_layer_gpt(target: str) -> None:
    """Processor time, so that other work on the machine does not count."""
    torch.manual_seed(0)
    inputs = (torch.randint(0, 50, (2, 16)), torch.randint(0, 50, (32,)))
    _, program, _ = graph_of_step(gpt(layers=12), inputs)
    lower(program, target)
    start = time.process_time()
    lower(program, target)
    seconds = time.process_time() - start
    print(f"{target}: {len(program.calls)} calls in {seconds:.2f} s of processor time")
    assert seconds < 3 * 1.5, f"{seconds:.2f} s"


def test_lowering_time_of_an_op() -> None:
    x, w = torch.rand(4, 8), torch.rand(8, 8)
    calls = [
        Program.from_call(torch.ops.aten.add.Tensor, (x, x)),
        Program.from_call(torch.ops.aten.mm.default, (x, w)),
        Program.from_call(torch.ops.aten._softmax.default, (x, -1, False)),
        Program.from_call(torch.ops.aten.sum.dim_IntList, (x, [1])),
        Program.from_call(torch.ops.aten.native_layer_norm.default, (x, [8], w[0], w[1], 1e-5)),
        Program.from_call(torch.ops.aten.add_.Tensor, (w.t()[:4], x)),
    ]
    for program in calls:
        lower(program)
    times = []
    for program in calls * 5:
        start = time.process_time()
        lower(program)
        times.append(time.process_time() - start)
    print(f"median {1000 * statistics.median(times):.1f} ms of processor time for one call")
    assert statistics.median(times) < 0.015 * 3  # three times the bar: a loaded machine must not fail the suite
