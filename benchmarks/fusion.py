"""Programs that are one loop over tiles, against Inductor's code for the CPU (both warm)."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.table import Row, Rows, group
from benchmarks.timing import human_time, interleave, seconds, synchronize
from torch_neuronx import _C

CHAIN = 4 * 1024 * 1024  # elements: 16 MB of float32
PARAMETERS = 10_000_000
ROUNDS = 3


def mixed_chain(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """20 operations, five of them transcendental."""
    a = torch.tanh(x * y + 1.5) * x - y
    a = torch.sigmoid(torch.relu(a) + x) * 2.0 + y
    a = torch.exp(-a) * x
    a = torch.where(a > 0.2, a, y)
    a = torch.nn.functional.silu(a * a + x)
    return [torch.sqrt(a.abs() + 1e-3) - y]


def exact_chain(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """20 operations of one instruction each."""
    a = x
    for _ in range(5):
        a = torch.clamp(a * y + x, -3, 3) - y
    return [a]


def adamw(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """AdamW's update of p, given g, m and v: its tensor operations, with constants for the numbers of a step."""
    n = len(tensors) // 4
    for p, g, m, v in zip(*(tensors[i * n : (i + 1) * n] for i in range(4)), strict=True):
        p.mul_(1 - 1e-5)
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m, v.sqrt().div_(0.3).add_(1e-8), value=-1e-3)
    return []


def against_inductor(function: Callable[..., Any], inputs: list[torch.Tensor], pairs: int) -> tuple[float, float, float]:
    """Seconds per call on neuron and with Inductor, and the median ratio of pairs."""
    here = _C.CompiledGraph(function, function.__name__)
    there = torch.compile(function, backend="inductor")
    device = [t.to("neuron") for t in inputs]
    for _ in range(2):
        here(list(device)), there(*inputs)
    synchronize()

    def neuron() -> None:
        for _ in range(ROUNDS):
            here(list(device))

    def inductor() -> None:
        for _ in range(ROUNDS):
            there(*inputs)

    return interleave(lambda: seconds(neuron, synchronize) / ROUNDS, lambda: seconds(inductor) / ROUNDS, pairs)


@group("fusion")
def fusion(effort: float) -> Rows:
    pairs = int(11 * effort)
    chain = [torch.randn(CHAIN) for _ in range(2)]
    sizes = [1 << 20] * 9 + [PARAMETERS - (9 << 20)]
    state = [torch.rand(size) for _ in range(4) for size in sizes]
    for what, function, inputs in (
        ("20-op chain, 16 MB, against Inductor", mixed_chain, chain),
        ("20-op chain of exact operations, against Inductor", exact_chain, chain),
        ("AdamW, 10 M parameters, against Inductor", adamw, state),
    ):
        neuron, inductor, ratio = against_inductor(function, inputs, pairs)
        yield Row(what, ratio, bar=1.1, detail=f"{human_time(neuron)} against {human_time(inductor)}")
