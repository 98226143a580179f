"""LSTM and GRU, forward and backward: on the device they are fused cells, which lower to what the device's kernels give."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_neuronx.lowering import Program
from torch_neuronx.lowering.executor import ProgramRun


def step_of(layer: torch.nn.Module) -> Callable[..., Any]:
    def step(x: torch.Tensor, *parameters: torch.Tensor) -> Any:
        named = dict(zip([name for name, _ in layer.named_parameters()], parameters, strict=True))
        result = torch.func.functional_call(layer, named, (x,))
        outputs = torch.utils._pytree.tree_leaves(result)
        loss = sum((i + 1) * (y * y).sum() for i, y in enumerate(outputs))
        return *outputs, *torch.autograd.grad(loss, (x, *parameters))

    return step


# PyTorch's meta function of the LSTM cell fails without bias (`rnn_cell_checkSizes` in torch/_meta_registrations.py, 2.13).
@pytest.mark.parametrize(
    ("kind", "bias"),
    [
        (torch.nn.LSTM, True),
        (torch.nn.LSTMCell, True),
        *((kind, bias) for kind in (torch.nn.GRU, torch.nn.GRUCell) for bias in (True, False)),
    ],
)
def test_step(kind: type[torch.nn.Module], bias: bool) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, bias=bias).to("neuron")
    shape = (2, 3) if kind.__name__.endswith("Cell") else (5, 2, 3)
    given = [x.detach().requires_grad_() for x in (torch.randn(shape, device="neuron"), *layer.parameters())]
    step = step_of(layer)
    graph = make_fx(step)(*given)
    assert any("_thnn_fused" in str(node.target) for node in graph.graph.nodes)
    program = Program.from_graph(graph, given)
    found = ProgramRun(program)(*(x.detach().cpu() for x in given))
    for got, wanted in zip(found, step(*given), strict=True):
        torch.testing.assert_close(got, wanted.detach().cpu())
