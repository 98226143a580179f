"""Three small models of the kinds that people train, and a training step as a function of tensors."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A transformer's layer: attention and MLP, each normalised first."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A GPT (causal) or a BERT (not)."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int, causal: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def gpt(layers: int = 2, width: int = 32) -> nn.Module:
    return Transformer(layers, width, 4, 50, 16, causal=True)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]]]] = {
    "GPT": (gpt, lambda: (torch.randint(0, 50, (2, 16)), torch.randint(0, 50, (32,)))),
    "BERT": (lambda: Transformer(2, 32, 4, 50, 16, causal=False), lambda: (torch.randint(0, 50, (2, 16)), torch.randint(0, 50, (32,)))),
    "ResNet": (resnet, lambda: (torch.rand(2, 3, 16, 16), torch.randint(0, 10, (2,)))),
}


def training_step(model: nn.Module) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A function of (inputs, targets, *state) that does one SGD step in place and gives the loss; and the state."""
    names = [name for name, _ in model.named_parameters()] + [name for name, _ in model.named_buffers()]
    state = [*model.parameters(), *model.buffers()]
    trained = len(list(model.parameters()))

    def step(inputs: torch.Tensor, targets: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        leaves = [value.detach().requires_grad_() for value in values[:trained]]
        named = dict(zip(names, [*leaves, *values[trained:]], strict=True))
        loss = F.cross_entropy(torch.func.functional_call(model, named, (inputs,)), targets)
        gradients = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            for value, gradient in zip(values, gradients, strict=False):
                value.sub_(gradient, alpha=0.1)
        return loss.detach()

    return step, [value.detach().clone() for value in state]
