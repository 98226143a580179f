"""Random functions of padded sizes: what ``torch_neuronx.buckets()`` does to them against the exact sizes.

``python -m tests.compile.padding 0 500`` runs the seeds from 0 to 499.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

import torch_neuronx
from torch_neuronx.compile import registry
from torch_neuronx.compile.padding import plan
from torch_neuronx.compile.padding.run import Bucketed

DEVICE = "neuron"
WIDTH = 4

# Operators on [batch, time, WIDTH] that give such a tensor again; the batch and the time are dynamic.
UNARY: Sequence[Callable[..., Any]] = (
    torch.sin,
    lambda x: x * 2 + 1,
    lambda x: x.softmax(-1),
    lambda x: x.softmax(1),
    lambda x: x.log_softmax(1) * 0.1,
    lambda x: x.cumsum(1) * 0.1,
    lambda x: x.cumsum(0) * 0.1,
    lambda x: x.reciprocal().clamp(-2, 2),
    lambda x: x.abs().add(1e-3).log(),
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: x - x.mean(),
    lambda x: x - x.amax((0, 1), keepdim=True),
    lambda x: x / (x.sum((0, 1)).abs() + 1),
    lambda x: x / (x.norm(dim=1, keepdim=True) + 1),
    lambda x: x + x.logsumexp(1, keepdim=True) * 0.1,
    lambda x: x + x.prod(1, keepdim=True),
    lambda x: x + x.argmax(1, keepdim=True) * 0.1,
    lambda x: x * x.max(1, keepdim=True).values.clamp(-2, 2),
    lambda x: x * (x > 0).all(1, keepdim=True),
    lambda x: x + (x > 1).any(1, keepdim=True).float(),
    lambda x: x[:, -1].unsqueeze(1) + x,
    lambda x: x + x[:, 0].unsqueeze(1) + x[:, :2].sum(1, keepdim=True),
    lambda x: F.layer_norm(x, (WIDTH,)),
    lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    lambda x: x.reshape(-1, WIDTH).view(x.shape) * 1.5,
    lambda x: x.reshape(-1, WIDTH).softmax(0).view(x.shape),
    lambda x: x.transpose(0, 1).reshape(-1, WIDTH).sum(0) * 0.1 + x,
    lambda x: x.view(x.shape[0], x.shape[1], 2, 2).permute(2, 0, 1, 3).sum(0).repeat_interleave(2, -1),
    lambda x: torch.cat([x[..., :2], x[..., 2:].neg()], -1),
    lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
    lambda x: x.flip(1),
    lambda x: x.flip(2),
    lambda x: x.roll(1, 1),
    lambda x: x.sort(-1).values,
    lambda x: x.sort(1).values,
    lambda x: x + torch.arange(x.shape[1], device=x.device).unsqueeze(-1) * 0.1,
    lambda x: x / x.shape[1] + x.numel() * 1e-3,
    lambda x: x * torch.ones(x.shape[1], x.shape[1], device=x.device).tril().sum(0).unsqueeze(-1) * 0.1,
    lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
    lambda x: (x @ x.transpose(1, 2)).tril().clamp(-3, 3) @ x * 0.1,
    lambda x: F.scaled_dot_product_attention(x.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1)).squeeze(1),
    lambda x: F.scaled_dot_product_attention(x.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1), is_causal=True).squeeze(1),
    lambda x: torch.einsum("btc,bsc->bts", x, x).sum(-1, keepdim=True) * 0.01 + x,
    lambda x: F.conv1d(x.transpose(1, 2), torch.ones(WIDTH, WIDTH, 1, device=x.device)).transpose(1, 2) * 0.1,
    lambda x: F.avg_pool1d(x.transpose(1, 2), 3, 1, 1).transpose(1, 2),
    lambda x: x.gather(-1, x.argsort(-1)),
    lambda x: x.var(-1, keepdim=True) + x,
    lambda x: x.var(1, keepdim=True) + x,
    lambda x: torch.where(x.isnan(), 0.0, x),
    lambda x: F.mse_loss(x, x.detach() * 0.5) + x,
    lambda x: F.dropout(x, 0.0),
    lambda x: x.to(torch.bfloat16).float(),
    lambda x: (x * 3).to(torch.int64).remainder(x.shape[1]).float() + x,
)
BINARY: Sequence[Callable[..., Any]] = (
    torch.add,
    torch.mul,
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: x + y.mean(1, keepdim=True),
    lambda x, y: (x @ y.transpose(1, 2)).softmax(-1) @ y,
    lambda x, y: x @ (y.reshape(-1, WIDTH).t() @ x.reshape(-1, WIDTH)).softmax(-1),
    lambda x, y: F.smooth_l1_loss(x, y) + x,
    lambda x, y: torch.stack([x, y]).amax(0),
)


def program(seed: int) -> Callable[..., list[torch.Tensor]]:
    """A function of (x [batch, time, WIDTH], tokens [batch, time], table [5, WIDTH]): a few tensors."""
    draw = random.Random(seed)
    steps: list[tuple[Callable[..., Any], Sequence[int]]] = []
    for size in range(2, 2 + draw.randint(2, 7)):
        arity = draw.choice((1, 1, 1, 2))
        places = [max(0, size - 1 - int(draw.expovariate(0.7))) for _ in range(arity)]
        steps.append((draw.choice(UNARY if arity == 1 else BINARY), places))
    ends = draw.sample(range(4), draw.randint(1, 3))

    def run(x: torch.Tensor, tokens: torch.Tensor, table: torch.Tensor) -> list[torch.Tensor]:
        pool = [x, F.embedding(tokens, table)]
        for function, places in steps:
            pool.append(function(*(pool[place] for place in places)))
        last = pool[-1].clamp(-10, 10)
        results = (
            last,
            last.transpose(1, 2) * 2,
            F.cross_entropy(last.flatten(0, 1), tokens.flatten() % WIDTH),
            last.mean(1) + last.sum() * 0.01,
        )
        return [results[end] for end in ends]

    return run


def outcome(function: Callable[..., list[torch.Tensor]], batch: int, time: int) -> list[torch.Tensor]:
    """Results and gradients."""
    generator = torch.Generator().manual_seed(batch * 100 + time)
    x = torch.randn(batch, time, WIDTH, generator=generator).to(DEVICE).requires_grad_()
    tokens = torch.randint(0, 5, (batch, time), generator=generator).to(DEVICE)
    table = torch.randn(5, WIDTH, generator=generator).to(DEVICE).requires_grad_()
    results = function(x, tokens, table)
    torch.stack([value.sum() for value in results]).sum().backward()
    return [value.detach() for value in (*results, x.grad, table.grad) if value is not None]


def difference(seed: int, told: Counter[str]) -> str | None:
    """What buckets change, or None. All that is added to floats is NaN here, so whatever reached a result would be seen."""
    function = program(seed)
    torch.compiler.reset()
    earlier = {code.number for code in registry.graphs()}
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=True)
    normal, plan._padding = plan._padding, lambda dtype: float("nan") if dtype.is_floating_point else normal(dtype)
    try:
        for batch, time in ((3, 5), (2, 7), (5, 6), (4, 8)):
            with torch_neuronx.buckets(False):
                expected = outcome(compiled, batch, time)
            with torch_neuronx.buckets():
                actual = outcome(compiled, batch, time)
            for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
                if got.shape != wanted.shape or (got.stride() != wanted.stride() and got.is_contiguous() != wanted.is_contiguous()):
                    return f"seed {seed}, {batch} x {time}, tensor {index}: {got.shape} {got.stride()}, {wanted.shape} {wanted.stride()}"
                if not torch.allclose(got.cpu(), wanted.cpu(), rtol=2e-4, atol=2e-4, equal_nan=True):
                    worst = (got - wanted).abs().max().item()
                    return f"seed {seed}, {batch} x {time}, tensor {index} of {len(actual)} differs by {worst}"
    finally:
        plan._padding = normal
    for code in registry.graphs():
        for graph in code.graphs.values() if code.number not in earlier else ():
            if not isinstance(graph, Bucketed):
                continue
            told["graphs"] += 1
            told["padded"] += bool(graph.bucketed)
            told["programs"] += graph.padded.stats()["programs"] if graph.padded else 0
            told.update(
                why.split(": ", 1)[1].split(" (at")[0] for why in (f"{label}: {text}" for label, text in graph.plan.refused.items())
            )
    return None


def main(first: str = "0", last: str = "100") -> None:
    told: Counter[str] = Counter()
    wrong = 0
    for seed in range(int(first), int(last)):
        try:
            found = difference(seed, told)
        except Exception as error:
            found = f"seed {seed}: {type(error).__name__}: {str(error)[:400]}"
        if found:
            wrong += 1
            print(found, flush=True)
    for what, count in told.most_common(30):
        print(f"{count:6} {what}")
    print(f"{wrong} differ")


if __name__ == "__main__":
    main(*sys.argv[1:])
