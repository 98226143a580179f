"""The gradients of a tensor's parts are put together in one go, with eager's bits."""

import pytest
import torch

from torch_neuronx.compile import gradients_of_parts

DEVICE = "neuron"


def qkv(x):
    parts = x.reshape(4, 3, 2).permute(1, 0, 2)  # indexed: the gradient of iteration, which is unbind(), is a concatenation as it is
    return parts[0] * parts[1].sin() + parts[-1]


def rotated(x):
    first, second = x[..., :2], x[..., 2:]
    return torch.cat([-second, first * 2], -1)


CASES = {
    "all of select": (qkv, 1),
    "all of slice": (rotated, 1),
    "the last dimension": (lambda x: torch.stack([x[..., i] * i for i in range(6)]), 1),
    "a part is missing": (lambda x: x[0] * x[1].sin() * x[2], 0),
    "a part is taken twice": (lambda x: x[0] * 2 + x[0].sin() + x[1] + x[2] + x[3], 0),
    "ranges overlap": (lambda x: x[:, :4] * x[:, 2:], 0),
    "gaps": (lambda x: x[:, ::2] * x[:, 1::2], 0),
    "besides the whole": (lambda x: x.sin() * 2 + torch.cat([x[:2].exp(), x[2:]]), None),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_bits_and_rewrites(name, dynamic, monkeypatch):
    function, expected = CASES[name]
    rewritten = []
    join = gradients_of_parts.join
    monkeypatch.setattr(gradients_of_parts, "join", lambda gm: rewritten.append(join(gm)))
    outcomes = []
    for run in (function, torch.compile(function, backend="neuron", fullgraph=True, dynamic=dynamic)):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
        result = run(x)
        result.backward(torch.tensor([1.0, -0.0, 0.0, 2.0, -1.0, 3.0])[: result.shape[-1]].to(DEVICE).expand(result.shape))
        outcomes.append(x.grad.cpu().view(torch.int32))
    assert torch.equal(*outcomes)
    if expected is not None and not dynamic:  # a part of a size that is a symbol may be any part
        assert sum(rewritten) == expected


def test_channels_last_parts_keep_the_strides_of_their_sum():
    """What follows in the graph was traced for these: there is no such view of a concatenation, which is channels-last."""

    def flat(x, weight):
        image = x.reshape(2, 4, 5, 5)
        return torch.cat([image[:, 2:].sin(), image[:, :2].exp()], 1).to(memory_format=torch.channels_last) * weight

    outcomes = []
    for run in (flat, torch.compile(flat, backend="neuron", fullgraph=True)):
        x = torch.randn(2, 100, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
        weight = torch.ones(2, 4, 5, 5, device=DEVICE).to(memory_format=torch.channels_last)
        run(x, weight).sum().backward()
        outcomes.append(x.grad.cpu())
    assert torch.equal(*outcomes)


def test_a_gradient_has_eagers_strides():
    def parts(x):
        return x[:, :2].sin() + x[:, 2:].exp()

    x = torch.randn(2, 4, 5, 5).to(DEVICE).to(memory_format=torch.channels_last).requires_grad_()
    direction = torch.randn(2, 2, 5, 5).to(DEVICE).to(memory_format=torch.channels_last)
    strides = []
    for run in (parts, torch.compile(parts, backend="neuron", fullgraph=True)):
        (gradient,) = torch.autograd.grad(run(x), x, direction)
        strides.append(gradient.stride())
    assert strides[0] == strides[1]
