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
