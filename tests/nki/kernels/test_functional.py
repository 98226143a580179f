"""PyTorch on top of the kernels: gradients, and the switch that routes PyTorch's functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.nki.kernels.check import close
from torch_neuronx.nki import kernels
from torch_neuronx.nki.kernels import functional


def test_attention_has_gradients() -> None:
    q = torch.randn(2, 4, 96, 32, device="neuron", requires_grad=True)
    k, v = (torch.randn(2, 2, 96, 32, device="neuron", requires_grad=True) for _ in range(2))
    out = functional.attention(q, k, v, is_causal=True)
    out.square().sum().backward()
    other = [t.detach().cpu().requires_grad_() for t in (q, k, v)]
    expected = F.scaled_dot_product_attention(other[0], other[1], other[2], is_causal=True, enable_gqa=True)
    expected.square().sum().backward()
    close(out.detach(), expected.detach())
    for mine, theirs in zip((q, k, v), other, strict=True):
        assert mine.grad is not None and theirs.grad is not None
        close(mine.grad, theirs.grad, factor=5)


def test_rms_norm_has_gradients() -> None:
    x, weight = torch.randn(3, 50, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    functional.rms_norm(x, weight, 1e-5).square().sum().backward()
    x2, weight2 = x.detach().requires_grad_(), weight.detach().requires_grad_()
    F.rms_norm(x2, (64,), weight2, 1e-5).square().sum().backward()
    for mine, theirs in ((x, x2), (weight, weight2)):
        assert mine.grad is not None and theirs.grad is not None
        close(mine.grad, theirs.grad, factor=5)


def test_routing_is_off_unless_asked_for() -> None:
    x = torch.randn(1, 2, 64, 32, device="neuron")
    with kernels.route("rms_norm") as routed:
        F.scaled_dot_product_attention(x, x, x)
        assert routed == {}
        F.rms_norm(x, (32,), torch.ones(32, device="neuron"))
    assert routed == {"rms_norm": 1}
    F.rms_norm(x, (32,), torch.ones(32, device="neuron"))
    assert routed == {"rms_norm": 1}


def test_routed_modules_agree_with_pytorch() -> None:
    torch.manual_seed(1)
    norm = torch.nn.RMSNorm(48, eps=1e-5, device="neuron")
    x = torch.randn(2, 3, 80, 48, device="neuron")
    with kernels.route("sdpa", "rms_norm") as routed:
        y = norm(x)
        out = F.scaled_dot_product_attention(y, y, y, is_causal=True)
    assert sum(routed.values()) == 2
    expected = F.rms_norm(x.cpu(), (48,), norm.weight.detach().cpu(), 1e-5)
    close(out.detach(), F.scaled_dot_product_attention(expected, expected, expected, is_causal=True))


def test_what_the_kernels_cannot_do_goes_to_pytorch() -> None:
    wide = torch.randn(1, 1, 16, 256, device="neuron")
    narrow = torch.randn(1, 1, 16, 32, device="neuron")
    on_cpu = torch.randn(1, 1, 16, 32)
    with kernels.route("sdpa", "rms_norm") as routed:
        F.scaled_dot_product_attention(wide, wide, wide)
        F.scaled_dot_product_attention(narrow, narrow, narrow, attn_mask=torch.zeros(16, 16, device="neuron"))
        F.scaled_dot_product_attention(on_cpu, on_cpu, on_cpu)
        F.rms_norm(narrow, (32,))
    assert routed == {}


def test_an_unknown_route_is_refused() -> None:
    with pytest.raises(ValueError, match="no route 'softmax'; there are sdpa, rms_norm"), kernels.route("softmax"):
        pass
