"""Complex numbers on a NeuronCore, as pairs of real ones: nothing runs on the host. See conftest.py and docs/dev/lowering.md."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F

from tests.standin_sdk.eager import same


def eager() -> None:
    torch.manual_seed(0)
    c, d = torch.randn(4, 6, dtype=torch.complex64), torch.randn(4, 6, dtype=torch.complex64)
    same(lambda a, b: a * b + a / b - b.conj(), c, d)
    same(lambda a: a.abs() + a.angle() + a.real * a.imag, c)
    same(lambda a: torch.view_as_real(a) * 2, c)
    same(lambda a: torch.view_as_complex(a) * 1j, torch.randn(5, 2))
    same(lambda a, b: a @ b.mH, c, d, tolerance=1e-4)
    same(lambda a: a[::2].mul_(2 - 1j), c)  # a view that is written
    same(lambda a: (a[:, ::2].real.add_(1), a)[1], c)
    same(lambda a: a.exp().sum(0), c)
    same(lambda a: torch.polar(a.abs(), a), torch.randn(7))
    for size in (8, 60, 127, 200, 1021):  # 1021 is a prime
        same(lambda a: torch.fft.fft(a), torch.randn(3, size, dtype=torch.complex64), tolerance=1e-3)
        same(lambda a: torch.fft.irfft(torch.fft.rfft(a), a.shape[-1]), torch.randn(2, size), tolerance=1e-4)


class SpectralConvolution(torch.nn.Module):
    """A Fourier Neural Operator's layer: low frequencies are mixed by complex weights."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = torch.nn.Parameter(torch.randn(channels, channels, modes, dtype=torch.complex64) / channels)
        self.local = torch.nn.Conv1d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x)
        mixed = torch.einsum("bix,iox->box", spectrum[..., : self.modes], self.weight)
        padded = F.pad(mixed, (0, spectrum.shape[-1] - self.modes))
        return F.gelu(torch.fft.irfft(padded, n=x.shape[-1]) + self.local(x))


class Rotary(torch.nn.Module):
    """Llama's rotary embedding: a complex multiplication."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.qk = torch.nn.Linear(width, 2 * width)
        angles = torch.outer(torch.arange(length).float(), 1.0 / 10000 ** (torch.arange(0, width, 2).float() / width))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def turned(y: torch.Tensor) -> torch.Tensor:
            pairs = torch.view_as_complex(y.float().reshape(*y.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * self.turns[: y.shape[1]]).flatten(-2)

        q, k = self.qk(x).chunk(2, -1)
        return turned(q) @ turned(k).transpose(1, 2)


def models(mode: str) -> None:
    """Losses of a few steps, and the gradients of the first, are the CPU's."""
    for make, x in ((lambda: SpectralConvolution(4, 5), torch.randn(2, 4, 24)), (lambda: Rotary(8, 16), torch.randn(2, 12, 8))):
        torch.manual_seed(0)
        host = make()
        model = copy.deepcopy(host).to("neuron")
        there = torch.compile(model, backend="neuron") if mode == "compiled" else model
        losses: list[list[float]] = []
        for function, parameters, inputs in ((host, host, x), (there, model, x.to("neuron"))):
            optimizer = torch.optim.SGD(parameters.parameters(), 0.05)
            losses.append([])
            for _ in range(3):
                optimizer.zero_grad()
                loss = function(inputs).square().mean()
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-4)
        print(losses, flush=True)
