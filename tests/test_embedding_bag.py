"""Gradients of embedding_bag on neuron: dense ones, and sparse ones, which are composed of other ops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


def gradients(device: str, mode: str, sparse: bool, weighted: bool, offsets: list[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(10, 3, generator=generator).to(device).requires_grad_()
    indices = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9], device=device)
    scale = torch.rand(8, generator=generator).to(device).requires_grad_() if weighted else None
    out = F.embedding_bag(indices, weight, torch.tensor(offsets, device=device), mode=mode, sparse=sparse, per_sample_weights=scale)
    (out * torch.arange(out.numel(), device=device).view_as(out)).sum().backward()
    assert weight.grad is not None and weight.grad.is_sparse == sparse
    return weight.grad.to_dense().cpu(), None if scale is None or scale.grad is None else scale.grad.cpu()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
@pytest.mark.parametrize("offsets", [[0, 4], [0, 0, 3, 8]], ids=str)
def test_gradients(mode: str, weighted: bool, sparse: bool, offsets: list[int]) -> None:
    torch.testing.assert_close(gradients("neuron", mode, sparse, weighted, offsets), gradients("cpu", mode, sparse, weighted, offsets))
