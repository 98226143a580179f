"""Random programs: lists of calls on a growing pool of tensors, drawn from a seed, the same on every run.

``python -m tests.compile.fuzz [--count 200] [--start 0]`` compares Adaptive Eager and compiled code with eager, bit for bit.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from torch_neuronx import _C

DEVICE = "neuron"
Call = Callable[[list[torch.Tensor]], torch.Tensor]

UNARY: tuple[Callable[..., Any], ...] = (
    torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.abs, torch.neg, torch.sin, F.gelu, F.silu, F.softplus, torch.sign, torch.erf,
    lambda x: x.clamp(-1, 1), lambda x: x * 0.5 + 1, lambda x: x.to(torch.bfloat16).float(), lambda x: x.double().mul(3).float(),
    lambda x: x.contiguous(), lambda x: x.clone().mul_(0.25).add_(1), lambda x: x.softmax(-1), lambda x: x.log_softmax(0),
    lambda x: x - x.mean(-1, keepdim=True), lambda x: x / (x.norm(dim=-1, keepdim=True) + 1), lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: x.cumsum(0), lambda x: x.flip(-1), lambda x: x.roll(1, 0), lambda x: torch.where(x > 0, x, x * 0.1),
    lambda x: F.dropout(x, 0.3), lambda x: x + torch.rand_like(x), lambda x: x.masked_fill(x > 1, 0.5), lambda x: x.sort(-1).values,
    lambda x: x.sum(0, keepdim=True).expand(x.shape), lambda x: x.amax(-1, keepdim=True) - x, lambda x: x.var(0, keepdim=True) + x,
    lambda x: torch.cat([x[1:], x[:1]]), lambda x: x.t().reshape(x.shape),
    lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1, device=x.device)],
)  # fmt: skip
BINARY: tuple[Callable[..., Any], ...] = (
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.atan2, lambda x, y: x / (y.abs() + 1), lambda x, y: x.lerp(y, 0.3),
    lambda x, y: torch.addcmul(x, x, y, value=0.5), lambda x, y: (x @ y.t()) @ y * 0.1, lambda x, y: torch.where(x > y, x, y),
    lambda x, y: F.linear(x, y[: y.shape[1]] @ y[: y.shape[1]].t() if y.shape[0] >= y.shape[1] else torch.eye(y.shape[1], device=y.device)),
    lambda x, y: x.clone().copy_(y).add_(x), lambda x, y: x + y[0],
    lambda x, y: x.index_add(0, torch.zeros(1, dtype=torch.int64, device=x.device), y[:1]),
    lambda x, y: torch.stack([x, y]).sum(0), lambda x, y: torch.hypot(x, y),
)  # fmt: skip
# Row functions and what stands around them in models. Only some seeds draw from these as well, so that the others stay what they were.
OF_ROWS: tuple[Callable[..., Any], ...] = (
    lambda x: (x * 0.5).softmax(-1) * 2, lambda x: x.to(torch.bfloat16).softmax(-1).float(), lambda x: F.dropout((x + 1).softmax(-1), 0.2),
    lambda x: x.to(torch.bfloat16).float().log_softmax(-1), lambda x: (x - 1).to(torch.bfloat16).log_softmax(-1).float() * 0.5,
    lambda x: F.cross_entropy(x * 2, torch.arange(x.shape[0], device=x.device) % x.shape[1]) + x, lambda x: x.double().softmax(-1).float(),
    lambda x: F.layer_norm(x + 1, x.shape[-1:]) * 0.5, lambda x: F.rms_norm(x * 2, x.shape[-1:]) + x, lambda x: x.t().softmax(-1).t(),
    lambda x: F.group_norm(x[None, :, :], 1)[0] * 0.5, lambda x: F.layer_norm(x.to(torch.bfloat16), x.shape[-1:]).float(),
    lambda x: F.nll_loss(x.log_softmax(-1), torch.zeros(x.shape[0], dtype=torch.int64, device=x.device), reduction="sum") * 0.1 + x,
)  # fmt: skip
OF_ROWS_BINARY: tuple[Callable[..., Any], ...] = (
    lambda x, y: (x * 0.3 + y).softmax(-1), lambda x, y: x.masked_fill(y > 0.5, -1e9).softmax(-1) * y, lambda x, y: x.softmax(-1) * y + x,
    lambda x, y: F.layer_norm(x + y, x.shape[-1:], y[0], y[0]) * 0.5 + x, lambda x, y: F.layer_norm(x, x.shape[-1:], y[0]) * y,
    lambda x, y: F.rms_norm(x + y, x.shape[-1:], y[0]) * 0.5, lambda x, y: (x * y[:1]).log_softmax(-1) + y,
    lambda x, y: F.layer_norm((x + y).to(torch.bfloat16), x.shape[-1:], y[0].to(torch.bfloat16), y[0].to(torch.bfloat16)).float(),
)  # fmt: skip


def program(seed: int) -> Callable[..., list[torch.Tensor]]:
    """A function of three tensors [rows, columns]; it may write into the third, and gives what its last calls gave."""
    draw = random.Random(seed)
    steps: list[tuple[Callable[..., Any], Sequence[int]]] = []
    rows = seed % 5 in (0, 2)
    unary, binary = (UNARY + 2 * OF_ROWS, BINARY + 2 * OF_ROWS_BINARY) if rows else (UNARY, BINARY)
    for size in range(3, 3 + draw.randint(4, 24)):
        arity = draw.choice((1, 1, 2))
        # Mostly what was made lately, so that chains form.
        places = [max(0, size - 1 - int(draw.expovariate(0.5))) for _ in range(arity)]
        steps.append((draw.choice(unary if arity == 1 else binary), places))
    writes, kept = draw.random() < 0.5, draw.randint(1, 3)

    def run(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        pool = [x, y, z.detach() * 1]
        for function, places in steps:
            pool.append(function(*(pool[place] for place in places)))
        if writes:
            z.copy_(pool[-1].detach()).mul_(0.5)
        return pool[-kept:]

    return run


def outcome(function: Callable[..., list[torch.Tensor]], rows: int, columns: int) -> list[torch.Tensor]:
    """Results, gradients, and the third tensor afterwards."""
    generator = torch.Generator().manual_seed(rows * columns)
    x, y, z = (torch.randn(rows, columns, generator=generator).to(DEVICE) for _ in range(3))
    x.requires_grad_()
    y.requires_grad_()
    torch.manual_seed(1)
    results = function(x, y, z)
    torch.stack([value.sum() for value in results]).sum().backward() if any(value.requires_grad for value in results) else None
    return [value.detach() for value in (*results, x.grad, y.grad, z) if value is not None]


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return got.dtype == wanted.dtype and got.shape == wanted.shape and torch.equal(got.nan_to_num(7.0), wanted.nan_to_num(7.0))


def adaptive_difference(seed: int) -> str | None:
    """What Adaptive Eager does otherwise than plain eager, or None: as its windows are met, built and replayed."""
    function, shape = program(seed), (6, 4)
    before = _C._set_adaptive_eager(False)
    try:
        expected = outcome(function, *shape)
        _C._set_adaptive_eager(True)
        for attempt in range(4):
            for index, (got, wanted) in enumerate(zip(outcome(function, *shape), expected, strict=True)):
                if not same(got, wanted):
                    return f"Adaptive Eager, run {attempt}, tensor {index}: differs by {(got - wanted).abs().max().item()}"
    finally:
        _C._set_adaptive_eager(before)
    return None


def difference(seed: int) -> str | None:
    """What compiled code does otherwise than eager, or None. Half of the programs are compiled with dynamic sizes and see two."""
    function = program(seed)
    shapes = [(6, 4), (6, 4), (9, 5), (6, 4)] if seed % 2 else [(6, 4)] * 3
    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=bool(seed % 2))
    for attempt, shape in enumerate(shapes):
        expected, actual = outcome(function, *shape), outcome(compiled, *shape)
        if len(actual) != len(expected):
            return f"run {attempt}: {len(actual)} tensors, expected {len(expected)}"
        for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
            if got.dtype != wanted.dtype or got.shape != wanted.shape:
                return f"run {attempt}, tensor {index}: {got.dtype} {tuple(got.shape)}, expected {wanted.dtype} {tuple(wanted.shape)}"
            if same(got, wanted):
                continue
            # AOTAutograd may differentiate another way than eager does, on the CPU too (seed 6: another gradient, not rounding): then its
            # own backend is what ours has to equal.
            by_pytorch = outcome(torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=bool(seed % 2)), *shape)[index]
            if not same(got, by_pytorch):
                return f"run {attempt}, tensor {index}: differs by {(got - wanted).abs().max().item()}"
    return None


def failures(seeds: Sequence[int]) -> list[str]:
    found = []
    for seed in seeds:
        try:
            text = adaptive_difference(seed) or difference(seed)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:300]}"
        if text:
            found.append(f"seed {seed}: {text}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compile.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    found = failures(range(options.start, options.start + options.count))
    print("\n".join(found))
    print(f"{options.count - len(found)} of {options.count} programs: compiled = Adaptive Eager = eager, bit for bit")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
