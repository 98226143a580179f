from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.nki.kernels.check import close
from torch_neuronx.nki.kernels import (
    conv2d,
    cross_entropy,
    cross_entropy_backward,
    expert_blocks,
    moe_grouped_matmul,
    selective_scan,
    swiglu_mlp,
    topk,
)

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "hidden", "inner"), [(128, 128, 512), (70, 200, 330), (600, 64, 128)])
def test_swiglu(tokens: int, hidden: int, inner: int, dtype: torch.dtype) -> None:
    x = torch.randn(tokens, hidden, dtype=dtype)
    gate, up, down = ((torch.randn(shape) * shape[0] ** -0.5).to(dtype) for shape in ((hidden, inner), (hidden, inner), (inner, hidden)))
    expected = (F.silu(x.double() @ gate.double()) * (x.double() @ up.double())) @ down.double()
    close(swiglu_mlp(x, gate, up, down), expected, factor=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moe(dtype: torch.dtype) -> None:
    tokens, depth, columns, experts, chosen = 150, 192, 600, 4, 2
    x, weights = torch.randn(tokens, depth, dtype=dtype), torch.randn(experts, depth, columns, dtype=dtype)
    assignment = torch.rand(tokens, experts - 1).topk(chosen).indices  # the last expert gets no token
    rows, which, place = expert_blocks(assignment, experts)
    assert len(rows) == 128 * len(which) and int(which.max()) < experts - 1
    result = moe_grouped_matmul(x, weights, rows, which)
    expected = torch.einsum("td,tcdn->tcn", x.double(), weights.double()[assignment])
    close(result[place], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "classes"), [(128, 512), (130, 5000)])
def test_cross_entropy(rows: int, classes: int, dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(rows, classes)).to(dtype)
    target = torch.randint(classes, (rows, 1), dtype=torch.int32)
    wide = logits.float().requires_grad_()
    expected = F.cross_entropy(wide, target[:, 0].long(), reduction="none")
    d_loss = torch.rand(rows, 1)
    expected.backward(d_loss[:, 0])
    loss, lse = cross_entropy(logits, target)
    close(loss[:, 0], expected.detach())
    close(lse[:, 0], wide.detach().logsumexp(-1))
    assert wide.grad is not None
    close(cross_entropy_backward(logits, target, lse, d_loss), wide.grad)


@pytest.mark.parametrize(("batch", "channels", "states", "steps"), [(1, 128, 4, 64), (2, 160, 3, 2100)])
def test_selective_scan(batch: int, channels: int, states: int, steps: int) -> None:
    delta, u = torch.rand(batch, channels, steps), torch.randn(batch, channels, steps)
    a = -torch.rand(channels, states)
    b, c = torch.randn(batch, states, steps), torch.randn(batch, states, steps)
    h = torch.zeros(batch, channels, states, dtype=torch.float64)
    expected = []
    for t in range(steps):
        rate = delta[:, :, t, None].double()
        h = torch.exp(rate * a) * h + rate * u[:, :, t, None] * b[:, None, :, t]
        expected.append((h * c[:, None, :, t]).sum(-1))
    close(selective_scan(delta, u, a, b, c), torch.stack(expected, -1), factor=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "c_in", "c_out", "size", "kernel", "padding", "biased"),
    [(1, 128, 128, (16, 16), (3, 3), 1, False), (2, 3, 40, (20, 14), (3, 3), 0, True), (1, 130, 140, (9, 300), (1, 5), 2, True)],
)
def test_conv2d(
    batch: int, c_in: int, c_out: int, size: tuple[int, int], kernel: tuple[int, int], padding: int, biased: bool, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(batch, c_in, *size, dtype=dtype), torch.randn(c_out, c_in, *kernel, dtype=dtype)
    bias = torch.randn(c_out, 1) if biased else None
    expected = F.conv2d(x.double(), weight.double(), None if bias is None else bias[:, 0].double(), padding=padding)
    close(conv2d(x, weight, bias, padding=padding), expected)


def test_conv2d_refuses_a_row_that_no_bank_holds() -> None:
    with pytest.raises(AssertionError, match="at most 512"):
        conv2d(torch.zeros(1, 1, 4, 600), torch.zeros(1, 1, 1, 1))


@pytest.mark.parametrize(("rows", "columns", "k"), [(128, 64, 8), (130, 1000, 20), (1, 8, 1)])
def test_topk(rows: int, columns: int, k: int) -> None:
    x = torch.randn(rows, columns)
    values, indices = topk(x, k)
    expected = torch.topk(x, k)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices.to(torch.int64), expected.indices)


def test_topk_of_equal_elements_names_different_places() -> None:
    x = torch.ones(4, 32)
    values, indices = topk(x, 12)
    assert torch.equal(values, torch.ones(4, 12))
    assert all(len(set(row.tolist())) == 12 for row in indices.to(torch.int64))
