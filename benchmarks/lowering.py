"""Time of lowering to StableHLO, in processor time of this thread's process: no device takes part."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.table import Row, Rows, group
from examples.train_gpt import ALPHABET, GPT, Config

OP_BAR_MS, GRAPH_BAR_S = 15.0, 3.0


def processor_seconds(body: Callable[[], Any]) -> float:
    start = time.process_time()
    body()
    return time.process_time() - start


def eager_calls() -> list[Any]:
    """One Program each: pointwise, product, reduction, normalisation, and a write into a strided view."""
    from torch_neuronx.lowering import Program

    aten = torch.ops.aten
    x, w = torch.rand(4, 8), torch.rand(8, 8)
    return [
        Program.from_call(aten.add.Tensor, (x, x)),
        Program.from_call(aten.mm.default, (x, w)),
        Program.from_call(aten._softmax.default, (x, -1, False)),
        Program.from_call(aten.sum.dim_IntList, (x, [1])),
        Program.from_call(aten.native_layer_norm.default, (x, [8], w[0], w[1], 1e-5)),
        Program.from_call(aten.add_.Tensor, (w.t()[:4], x)),
    ]


def gpt_step() -> Any:
    """Forward and backward of a GPT of 12 layers as one Program."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from torch_neuronx.lowering import Program

    model = GPT(Config(layers=12, heads=4, width=32, context=16, dropout=0.0))
    names, values = zip(*model.named_parameters(), strict=True)
    tokens, targets = torch.randint(len(ALPHABET), (2, 16)), torch.randint(len(ALPHABET), (32,))

    def step(tokens: torch.Tensor, targets: torch.Tensor, *values: torch.Tensor) -> Any:
        leaves = [value.detach().requires_grad_() for value in values]
        logits = torch.func.functional_call(model, dict(zip(names, leaves, strict=True)), (tokens,))
        loss = F.cross_entropy(logits.flatten(0, -2), targets)
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    given = [tokens, targets, *(value.detach() for value in values)]
    return Program.from_graph(make_fx(step)(*given), given)


@group("lowering")
def lowering(effort: float) -> Rows:
    from torch_neuronx.lowering import lower

    programs = eager_calls()
    for program in programs:
        lower(program)
    times = [1e3 * processor_seconds(lambda program=program: lower(program)) for program in programs * max(1, int(10 * effort))]  # type: ignore[misc]
    yield Row("one operator to StableHLO", statistics.median(times), "ms", OP_BAR_MS, f"{min(times):.1f} to {max(times):.1f} ms")
    program = gpt_step()
    for target in ("portable", "trn2"):
        lower(program, target)
        seconds = [processor_seconds(lambda target=target: lower(program, target)) for _ in range(max(1, int(3 * effort)))]  # type: ignore[misc]
        detail = f"{len(program.calls)} calls"
        yield Row(f"GPT of 12 layers, forward and backward, {target}", statistics.median(seconds), "s", GRAPH_BAR_S, detail)
