"""Sparse, nested and quantized tensors: the CPU's kernels on the same memory, so everything must equal the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

DEVICE = "neuron"
COMPRESSED = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():  # PyTorch calls these layouts beta
        warnings.simplefilter("ignore")
        yield


def sample(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(4, 6) * (torch.rand(4, 6) > 0.5)).to(dtype)


def to_layout(x: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    return x.to_sparse(layout=layout, blocksize=(2, 2)) if layout in (torch.sparse_bsr, torch.sparse_bsc) else x.to_sparse(layout=layout)


@pytest.mark.parametrize("layout", [torch.sparse_coo, *COMPRESSED])
def test_conversions_and_copies(layout: torch.layout) -> None:
    x = sample()
    for made in (to_layout(x.to(DEVICE), layout), to_layout(x, layout).to(DEVICE)):
        assert made.device.type == DEVICE and made.layout == layout
        assert torch.equal(made.to_dense().cpu(), x)
        back = made.cpu()
        assert back.device.type == "cpu" and back.layout == layout and torch.equal(back.to_dense(), x)
    assert torch.equal(torch.clone(made).to_dense().cpu(), x)


OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda s: s + s,
    "scale": lambda s: s * 2.5,
    "neg": torch.neg,
    "sparse times sparse": lambda s: s * s,
    "matmul": lambda s: s @ torch.ones(6, 3, device=s.device),
    "transpose": lambda s: s.t().to_sparse() if s.layout == torch.sparse_coo else s.to_dense().t(),
    "sum": torch.sum,
    "relu": torch.relu,
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_operations(layout: torch.layout, name: str) -> None:
    expected = OPERATIONS[name](to_layout(sample(), layout))
    actual = OPERATIONS[name](to_layout(sample().to(DEVICE), layout))
    assert actual.device.type == DEVICE and actual.layout == expected.layout
    torch.testing.assert_close(actual.to_dense().cpu(), expected.to_dense())


def test_parts_lie_on_the_device_and_alias() -> None:
    s = sample().to(DEVICE).to_sparse()
    assert s.indices().device.type == s.values().device.type == DEVICE
    s.values().mul_(2)
    assert torch.equal(s.to_dense().cpu(), sample() * 2)
    c = sample().to(DEVICE).to_sparse_csr()
    assert c.crow_indices().device.type == c.col_indices().device.type == DEVICE


def test_coalesce_and_in_place() -> None:
    index = torch.tensor([[0, 0, 2], [1, 1, 0]])
    value = torch.tensor([1.0, 2.0, 3.0])
    for device in ("cpu", DEVICE):
        s = torch.sparse_coo_tensor(index, value, (3, 3), device=device)
        assert not s.is_coalesced() and s.coalesce()._nnz() == 2
        s.add_(s)
        assert s.to_dense().cpu().tolist() == [[0, 6, 0], [0, 0, 0], [6, 0, 0]]
        s.zero_()
        assert s.to_dense().cpu().abs().sum() == 0


def test_sparse_gradients() -> None:
    grads = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(10, 3, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            embedding(torch.tensor([1, 2, 2], device=device)).square().sum().backward()
            optimizer.step()
        assert embedding.weight.grad is not None and embedding.weight.grad.layout == torch.sparse_coo
        x = sample().to(device).requires_grad_()
        torch.sparse.mm(x.to_sparse(), torch.ones(6, 2, device=device)).sum().backward()
        grads.append((embedding.weight.detach().cpu(), x.grad.to_dense().cpu() if x.grad is not None else None))
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested(layout: torch.layout) -> None:
    parts = [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3)]
    nested = torch.nested.nested_tensor(parts, layout=layout, device=DEVICE)
    assert nested.device.type == DEVICE and nested.is_nested
    assert all(torch.equal(a.cpu(), b) for a, b in zip(nested.unbind(), parts, strict=True))
    doubled = nested * 2
    assert all(torch.equal(a.cpu(), b * 2) for a, b in zip(doubled.unbind(), parts, strict=True))
    padded = torch.nested.to_padded_tensor(nested, 0.0)
    assert padded.device.type == DEVICE and padded.shape == (2, 4, 3)
    weight = torch.ones(5, 3, device=DEVICE)
    projected = torch.nn.functional.linear(nested, weight)
    assert [t.shape for t in projected.unbind()] == [(2, 5), (4, 5)]
    back = nested.cpu()
    assert back.device.type == "cpu" and torch.equal(back.unbind()[0], parts[0])


def test_quantized() -> None:
    x = torch.randn(3, 4)
    expected = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
    actual = torch.quantize_per_tensor(x.to(DEVICE), 0.1, 3, torch.quint8)
    assert actual.device.type == DEVICE and actual.q_scale() == expected.q_scale() and actual.q_zero_point() == 3
    assert torch.equal(actual.int_repr().cpu(), expected.int_repr())
    assert torch.equal(actual.dequantize().cpu(), expected.dequantize())
    channels = torch.quantize_per_channel(x.to(DEVICE), torch.tensor([0.1, 0.2, 0.3]).to(DEVICE), torch.zeros(3).to(DEVICE), 0, torch.qint8)
    expected = torch.quantize_per_channel(x, torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), 0, torch.qint8)
    assert torch.equal(channels.dequantize().cpu(), expected.dequantize())


def test_the_second_device() -> None:
    x = sample().to("neuron:1")
    for s in (x.to_sparse(), x.to_sparse_csr(), torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)):
        assert str(s.device) == "neuron:1"
        assert (s.dequantize() if s.is_quantized else s.to_dense()).device == s.device
    assert torch.equal((x.to_sparse() * 2).to_dense().cpu(), sample() * 2)


def test_fake_tensors() -> None:
    """Their parts lie on "meta"."""
    x = torch.eye(3, device=DEVICE)
    mode = FakeTensorMode()
    coo, csr, dense = (mode.from_tensor(t) for t in (x.to_sparse(), x.to_sparse_csr(), x))
    assert (coo.sparse_dim(), coo.dense_dim(), csr.dense_dim()) == (2, 0, 0)
    with mode:
        foretold = torch.sparse.sampled_addmm(csr, dense, dense)
    real = torch.sparse.sampled_addmm(x.to_sparse_csr(), x, x)
    assert (foretold.layout, foretold.shape, foretold.device) == (real.layout, real.shape, real.device)


def test_mixed_devices_are_refused() -> None:
    s = sample().to(DEVICE).to_sparse()
    with pytest.raises(RuntimeError, match="same device"):
        s @ torch.ones(6, 2)


# ---- 2:4 ----


def two_of_four(dtype: torch.dtype) -> torch.Tensor:
    pattern = torch.tensor([0.0, 1.0] if dtype is torch.float32 else [0.0, 1.0, 0.0, 1.0])
    return (torch.randint(1, 9, (64, 128)) * pattern.tile(128 // len(pattern))).to(dtype).to(DEVICE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_semi_structured(dtype: torch.dtype) -> None:
    dense = two_of_four(dtype)
    sparse = torch.neuron.to_sparse_semi_structured(dense)
    assert isinstance(sparse, torch.sparse.SparseSemiStructuredTensor) and sparse.device == dense.device and sparse.dtype == dtype
    assert sparse.values().numel() == dense.numel() // 2 and sparse.indices().device.type == DEVICE
    assert torch.equal(sparse.to_dense(), dense) and torch.equal(sparse.cpu(), dense.cpu())
    if dtype is torch.int8:
        return
    x, y, bias = (torch.randn(size, device=DEVICE).to(dtype) for size in ((3, 5, 128), (128, 7), (64,)))
    assert torch.equal(sparse @ y, dense @ y)
    for b in (None, bias):
        assert torch.equal(nn.functional.linear(x, sparse, b), nn.functional.linear(x, dense, b))
    layer = nn.Linear(128, 64, dtype=dtype, device=DEVICE)
    layer.weight = nn.Parameter(sparse)
    assert torch.equal(layer(x), nn.functional.linear(x, dense, layer.bias))


@pytest.mark.filterwarnings("ignore")
def test_semi_structured_refuses() -> None:
    convert = torch.neuron.to_sparse_semi_structured
    with pytest.raises(ValueError, match="float16 keeps 2 of 4 neighbours in a row"):
        convert(torch.ones(64, 128, dtype=torch.float16, device=DEVICE))
    with pytest.raises(RuntimeError, match=r"sizes 30 x 64 must be multiples of 32 x 64 in torch\.float16"):
        convert(torch.zeros(30, 64, dtype=torch.float16, device=DEVICE))
    with pytest.raises(RuntimeError, match=r"not torch\.float64"):
        convert(torch.zeros(32, 64, dtype=torch.float64, device=DEVICE))
    with pytest.raises(RuntimeError, match="takes a tensor on neuron, not on cpu"):
        convert(torch.zeros(32, 64))
    with pytest.raises(RuntimeError, match="contiguous matrix"):
        convert(torch.zeros(64, 64, device=DEVICE).t()[:, ::2])
    sparse = convert(two_of_four(torch.float16))
    with pytest.raises(NotImplementedError, match=r"write x @ sparse\.t\(\)"):
        sparse.t() @ torch.ones(64, 2, dtype=torch.float16, device=DEVICE)
    with pytest.raises(ValueError, match="to_dense"):
        sparse @ sparse
