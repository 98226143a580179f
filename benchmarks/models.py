"""Three models with data, and one training step of each; the same on every device."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.train_gpt import ALPHABET, GPT, Config


class ConvNet(nn.Module):
    """Four convolutions with batch norm on 32 x 32 images, [batch, 3, 32, 32] to [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in ((3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 128, 2)):
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))


def make_gpt() -> tuple[nn.Module, Tensor, Tensor]:
    model = GPT(Config(layers=4, heads=8, width=256, context=64, dropout=0.0))
    numbers = torch.randint(len(ALPHABET), (8, 65))
    return model, numbers[:, :-1].contiguous(), numbers[:, 1:].contiguous()


def make_conv_net() -> tuple[nn.Module, Tensor, Tensor]:
    return ConvNet(), torch.randn(16, 3, 32, 32), torch.randint(10, (16,))


def make_mlp() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.randn(64, 64), torch.randint(10, (64,))


# Steps per sample: enough that a sample is not over before the queue has had anything to do.
MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor, Tensor]], int]] = {
    "GPT 4 x 256": (make_gpt, 3),
    "conv net": (make_conv_net, 4),
    "small MLP": (make_mlp, 50),
}
OPTIMIZERS: dict[str, dict] = {"foreach": {"foreach": True}, "fused": {"fused": True}}


class Training:
    """A model in training on a device, its weights and data drawn on the CPU."""

    def __init__(self, name: str, optimizer: str, device: str) -> None:
        make, self.steps = MODELS[name]
        torch.manual_seed(0)
        model, x, y = make()
        self.model, self.x, self.y = model.to(device), x.to(device), y.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **OPTIMIZERS[optimizer])

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        logits = self.model(self.x)
        loss = F.cross_entropy(logits.flatten(0, -2), self.y.flatten())
        loss.backward()
        self.optimizer.step()
        return loss

    def sample(self) -> None:
        """A few steps; reading the last loss waits for the device."""
        for _ in range(self.steps):
            loss = self.step()
        loss.item()
