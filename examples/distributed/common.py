"""What the examples share: a small transformer, its data, and the check against one process."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, LAYERS, SEQUENCE, BATCH = 32, 32, 4, 4, 16, 8
LEARNING_RATE = 0.1

Weights = dict[str, Tensor]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for project in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.feed_forward_norm, self.feed_forward = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(nn.Module):
    """Predicts the next token: tokens [batch, sequence] -> logits [batch, sequence, vocabulary].

    ``positions`` [sequence] says which positions of a longer sequence the tokens have; None: all, in order.
    """

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.randn(SEQUENCE, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        x = self.embedding(tokens) + (self.position if positions is None else self.position[positions])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_model() -> Transformer:
    """The same weights on every rank, as one process would make them."""
    torch.manual_seed(0)
    return Transformer().to("neuron")


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Tokens and the tokens that follow them, [BATCH, SEQUENCE] each; the same on every rank."""
    tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(step)).to("neuron")
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def mean_over_ranks(loss: Tensor) -> float:
    loss = loss.detach().clone()
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return loss.item()


def train_alone(steps: int, model: nn.Module | None = None) -> tuple[list[float], Weights]:
    """What one process gets: the loss of each step, and the weights in the end."""
    model = make_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in range(steps):
        tokens, targets = batch(step)
        loss = loss_of(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach().cpu() for name, value in model.state_dict().items()}


def compare(name: str, losses: list[float], weights: Weights, alone: tuple[list[float], Weights]) -> None:
    """Fails unless the losses agree to 1e-5 and the weights to 1e-4, relative to the largest of each tensor."""
    expected_losses, expected = alone
    worst_loss = max((abs(a - b) / abs(b) for a, b in zip(losses, expected_losses, strict=True)), default=0.0)
    worst = max((weights[key].cpu() - expected[key]).abs().max().item() / expected[key].abs().max().item() for key in weights)
    if worst_loss > 1e-5 or worst > 1e-4:
        raise SystemExit(f"{name}: differs from one process: losses by {worst_loss:.1e} (bar 1e-5), weights by {worst:.1e} (bar 1e-4)")
    if dist.get_rank() == 0:
        print(f"{name}: {len(losses)} steps as in one process: losses differ by {worst_loss:.1e}, weights by {worst:.1e}")


def main(
    train: Callable[..., tuple[list[float], Weights]],
    check: Callable[..., object],
    arguments: Iterable[str] | None = None,
    *,
    may_compile: bool = False,
) -> None:
    """Runs an example under torchrun: ``--steps N``, ``--check`` against one process, ``--compile`` where there is such a form."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--check", action="store_true", help="compare losses and weights with a run in one process")
    if may_compile:
        parser.add_argument("--compile", action="store_true", help="with torch.compile")
    options = parser.parse_args(None if arguments is None else list(arguments))
    given = {"compiled": True} if may_compile and options.compile else {}
    dist.init_process_group("neuron")
    try:
        if options.check:
            check(options.steps, **given)
        else:
            losses, _ = train(options.steps, **given)
            if dist.get_rank() == 0:
                print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    finally:
        dist.destroy_process_group()
