"""NKI kernels on a NeuronCore: custom calls in NEFFs, run by this project's own simulator behind the stand-in. See conftest.py."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from tests.standin_sdk.eager import cost
from torch_neuronx import nki_op


@nki.jit
def scaled(x: Any, factor: float) -> Any:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(x), factor))
    return out


@nki.jit
def sum_and_difference(x: Any, y: Any) -> Any:
    added, rest = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2))
    nl.store(added, nl.add(nl.load(x), nl.load(y)))
    nl.store(rest, nl.subtract(nl.load(x), nl.load(y)))
    return added, rest


@nki.jit
def halves(x: Any) -> Any:
    """Each core doubles its half of the rows."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs(0)
    first = nl.program_id(0) * rows
    tile = nl.ndarray((rows, x.shape[1]), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[first : first + rows])
    nisa.tensor_scalar(tile, tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out[first : first + rows], src=tile)
    return out


@nki.jit
def into(x: Any, out: Any) -> None:
    nl.store(out, nl.load(x))


@nki_op("standin_nki::scaled", mutates_args={})
def scaled_op(x: torch.Tensor, factor: float) -> torch.Tensor:
    return scaled(x, factor)


scaled_op.register_autograd(
    lambda ctx, grad: (scaled_op(grad, ctx.factor), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


def eager() -> None:
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    there, other = x.to("neuron"), y.to("neuron")
    for turn in range(3):
        with cost() as counted:
            found = scaled(there + turn, 3.0) - other
        torch.testing.assert_close(found.cpu(), (x + turn) * 3 - y)
        assert counted.launches == 3 and counted.copied == (0, 0, 0), counted
    assert counted.neffs == 0, "the same kernel"
    added, rest = sum_and_difference(there, other)
    torch.testing.assert_close((added.cpu(), rest.cpu()), (x + y, x - y))
    low = x.bfloat16()
    torch.testing.assert_close(scaled(low.to("neuron"), 0.5).cpu(), low * 0.5)
    torch.testing.assert_close(scaled(there.t(), 2.0).cpu(), x.t() * 2)
    torch.testing.assert_close(halves[2](there).cpu(), x * 2)
    leaf = there.clone().requires_grad_()
    (scaled_op(leaf, 3.0) * 2).sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.cpu(), torch.full_like(x, 6.0))


def windows() -> None:
    """Kernels among the calls of a window, run one by one the first times and as one program later."""
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    there, other = x.to("neuron"), y.to("neuron")
    for turn in range(5):
        found = (scaled(there + turn, 3.0) - other).relu()
        torch.testing.assert_close(found.cpu(), ((x + turn) * 3 - y).relu())


def compiled() -> None:
    """One NEFF for a graph, with the kernel between the operators before and after it."""
    x, w = torch.randn(16, 8), torch.randn(8, 8)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.relu(x @ w)
        added, rest = sum_and_difference(scaled(h, 0.5), h)
        return torch.softmax(added, -1) + rest

    h = torch.relu(x @ w)
    wanted = torch.softmax(1.5 * h, -1) - 0.5 * h
    there = x.to("neuron"), w.to("neuron")
    graph: Any = torch.compile(function, backend="neuron", fullgraph=True)
    with torch.no_grad(), cost() as counted:
        found = graph(*there)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-5)
    assert counted.neffs == 1, counted
    with torch.no_grad(), cost() as counted:
        found = graph(*there)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-5)
    assert (counted.neffs, counted.launches) == (0, 1), counted


def refused() -> None:
    x = torch.randn(16, 8, device="neuron")
    for call, kind, text in (
        (lambda: into(x, x.clone()), NotImplementedError, "into writes to its arguments"),
        (lambda: scaled(torch.randn(200, 8, device="neuron"), 1.0), Exception, "partition"),
    ):
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)


def everything() -> None:
    eager()
    compiled()
    refused()
