"""Complex numbers as pairs of real ones: modules without a complex number, on XLA:CPU, against PyTorch. See docs/dev/lowering.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lowering.check import run_on_pairs
from torch_neuronx.lowering import Program, lower

C = torch.complex64


def _same(function: Callable[..., Any], *tensors: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    wanted = torch.utils._pytree.tree_leaves(function(*[tensor.clone() for tensor in tensors]))
    for a, b in zip(run_on_pairs(function, list(tensors)), wanted, strict=True):
        torch.testing.assert_close(a, b.resolve_conj(), rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 96, 97, 131, 360, 1024, 1021, 4096])
def test_transforms(size: int) -> None:
    """Lengths that are one product, that have factors, and primes; the error against float64 is near that of PyTorch's own float32."""
    torch.manual_seed(size)
    x = torch.randn(2, size, dtype=C)
    exact = torch.fft.fft(x.to(torch.complex128))
    (found,) = run_on_pairs(torch.fft.fft, [x])
    assert (found - exact).abs().max() / exact.abs().max() < 2e-6
    _same(lambda x: torch.fft.irfft(torch.fft.rfft(x), n=size), torch.randn(2, size), atol=1e-4)


def test_transforms_of_several_dimensions() -> None:
    x = torch.randn(3, 6, 10)
    _same(lambda x: (torch.fft.fft2(x), torch.fft.rfftn(x), torch.fft.irfft2(torch.fft.rfft2(x))), x, atol=1e-4)
    _same(lambda x: (torch.fft.ifftn(x), torch.fft.hfft(x), torch.fft.fft(x, dim=0, norm="ortho")), x.to(C), atol=1e-4)


def test_large_and_small_numbers() -> None:
    """Squares that overflow or vanish, division by such numbers, zeros."""
    parts = torch.tensor([0.0, -0.0, 1e-30, 1e30, -3e25, 2.0])
    x = torch.complex(*torch.meshgrid(parts, parts, indexing="ij")).flatten()
    _same(lambda x: (x.abs(), x.angle(), x.sqrt(), x.sgn()), x)
    some = x[x.abs() > 0]
    _same(lambda x: ((2 + 1j) / x, x / x, x.log()), some)
    _same(lambda x: (x.tanh(), x.sinh(), x.exp()), torch.complex(*torch.meshgrid(*[torch.linspace(-30, 30, 13)] * 2, indexing="ij")))


def test_loops_and_branches() -> None:
    def function(x: torch.Tensor) -> Any:
        doubled = torch.cond(x.real.sum() > 0, lambda x: x * 2j, lambda x: x.conj() + 0, (x,))
        return doubled, x.cumprod(0), torch.linalg.inv(x @ x.mH + torch.eye(4, dtype=C))

    torch.manual_seed(0)
    _same(function, torch.randn(4, 4, dtype=C), atol=1e-3)


def test_a_rotary_embedding_and_its_gradient() -> None:
    angles = torch.outer(torch.arange(5).float(), torch.rand(4))

    def function(x: torch.Tensor, angles: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        turned = torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 4, 2)) * torch.polar(torch.ones_like(angles), angles)).flatten(2)
        return turned, torch.autograd.grad(turned.square().cumsum(1).sum(), x)[0]

    _same(function, torch.randn(2, 5, 8), angles)


def test_the_memory_of_arguments() -> None:
    """A complex parameter of a chip's module is PyTorch's memory: pairs, and one that is written is the same memory as its result."""
    x = torch.randn(4, 6, dtype=C)
    lowered = lower(Program.from_call(torch.ops.aten.mul_.Tensor, (x[::2], x[::2])), "trn2")
    assert "complex<" not in lowered.text and "f32" in lowered.text
    assert lowered.written == [0] and lowered.hlo()
    assert "complex<" in lower(Program.from_call(torch.ops.aten.mul_.Tensor, (x[::2], x[::2]))).text


@pytest.mark.parametrize("op", ["abs", "angle", "sqrt", "reciprocal", "log", "exp", "tanh", "sgn", "acos", "log1p"])
def test_no_float64_comes_in(op: str) -> None:
    text = lower(Program.from_call(getattr(torch.ops.aten, op).default, (torch.randn(3, dtype=C),)), "trn2").text
    assert "f64" not in text and "complex<" not in text
