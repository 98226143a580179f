"""``out=`` tensors that are not contiguous, for operators whose CPU kernel gets them wrong: ``needs_contiguous_out()``."""

from collections.abc import Callable, Sequence

import pytest
import torch

UNTOUCHED = 7.0


def matrices(device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, 5, 5, generator=generator).to(device)


def gelu(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.aten.gelu(x) if out is None else torch.ops.aten.gelu.out(x, out=out)


def lu_unpack(x: torch.Tensor, out: Sequence[torch.Tensor] | None = None) -> Sequence[torch.Tensor]:
    factors = torch.linalg.lu_factor(x)
    return torch.lu_unpack(*factors) if out is None else torch.lu_unpack(*factors, out=out)


OPS = {"tril": torch.tril, "triu": torch.triu, "lu_unpack": lu_unpack, "linalg.lu": torch.linalg.lu, "gelu": gelu}


def run(op: Callable, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """What it returns, the ``out=`` tensors that it was given, and what lies around them."""
    functional = op(matrices(device))
    expected = [functional] if isinstance(functional, torch.Tensor) else list(functional)
    # Every second of each dimension, in the middle: what is written past the end stays in the buffer.
    buffers = [torch.full([4 * size for size in one.shape], UNTOUCHED, device=device) for one in expected]
    outs = [buffer[tuple(slice(size, 3 * size, 2) for size in one.shape)] for buffer, one in zip(buffers, expected, strict=True)]
    op(matrices(device), out=outs[0] if len(outs) == 1 else outs)
    written = [out.cpu() for out in outs]
    for out in outs:
        out.fill_(UNTOUCHED)
    return [one.cpu() for one in expected], written, [buffer.cpu() for buffer in buffers]


def is_right(expected: list[torch.Tensor], written: list[torch.Tensor], around: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, written, expected)) and all((buffer == UNTOUCHED).all() for buffer in around)


@pytest.mark.parametrize("name", OPS)
def test_strided_out(name):
    assert is_right(*run(OPS[name], "neuron"))


@pytest.mark.parametrize("name", OPS)
def test_the_cpu_gets_it_wrong(name):
    """When PyTorch has mended it, this fails: the operator leaves ``needs_contiguous_out()``."""
    assert not is_right(*run(OPS[name], "cpu"))


def test_contiguous_and_empty_out():
    x = matrices("neuron")
    for out in (torch.empty_like(x), torch.empty(0, device="neuron")):
        result = torch.tril(x, out=out)
        assert result.data_ptr() == out.data_ptr() and torch.equal(out.cpu(), torch.tril(x.cpu()))


def test_wrong_size_warns_and_resizes():
    out = torch.empty(3, 4, device="neuron").t()
    with pytest.warns(UserWarning, match="was resized"):
        torch.tril(matrices("neuron"), out=out)
    assert torch.equal(out.cpu(), torch.tril(matrices("cpu")))


def test_wrong_dtype_is_refused():
    with pytest.raises(RuntimeError, match="dtype"):
        torch.tril(matrices("neuron"), out=torch.empty(5, 5, 3, 2, dtype=torch.int64, device="neuron").permute(3, 2, 1, 0))
