"""Tile functions over the whole range of each type, against PyTorch's CPU kernels."""

from __future__ import annotations

import math

import pytest
import torch

from tests.test_tiles import IDS, REAL, ROWS, UNDECIDED, Op, on_device


def whole_range(dtype: torch.dtype) -> torch.Tensor:
    """Both signs of every magnitude, denser around 0, 1 and where exponentials overflow."""
    limits = torch.finfo(dtype)
    magnitudes = torch.logspace(math.log10(limits.tiny), math.log10(limits.max) - 1e-9, 301, dtype=torch.float64)
    near_one = 1 + torch.cat([step := torch.logspace(-7, 0, 40, dtype=torch.float64), -step])
    steep = torch.linspace(0, math.log(limits.max) + 1, 301, dtype=torch.float64)
    values = torch.cat([magnitudes, near_one, steep, torch.tensor([0.0, math.inf, limits.max, limits.tiny / 4], dtype=torch.float64)])
    return torch.cat([values, -values, torch.tensor([math.nan], dtype=torch.float64)]).to(dtype)


def assert_close_or_nearer(actual: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor, slack: torch.Tensor, what: str) -> None:
    """Within PyTorch's tolerance of the CPU; else nearer to the exact value, since the CPU's half and oneDNN kernels overflow or flush to
    zero early here and there."""
    if not expected.dtype.is_floating_point:
        assert torch.equal(actual, expected), what
        return
    rtol, atol = torch.testing._comparison.default_tolerances(actual, expected)

    def near(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.isclose(one.double(), other.double(), rtol=rtol, atol=atol, equal_nan=True)

    error = (actual.double() - exact).abs()
    wrong = ~(near(actual, expected) | near(actual, exact) | (error < (expected.double() - exact).abs()) | (error < slack))
    assert not wrong.any(), (
        f"{what}: {actual[wrong].tolist()[:9]}, the CPU {expected[wrong].tolist()[:9]}, exact {exact[wrong].tolist()[:9]}"
    )


@pytest.mark.parametrize(("name", "op", "count", "dtypes"), ROWS, ids=IDS)
def test_whole_range(name: str, op: Op, count: int, dtypes: tuple[torch.dtype, ...]) -> None:
    for dtype in set(dtypes) & set(REAL):
        values = whole_range(dtype)
        generator = torch.Generator().manual_seed(0)
        tensors = [values, *(values[torch.randperm(len(values), generator=generator)] for _ in range(count - 1))]
        undecided = [str(value) for value in UNDECIDED.get(name, [])]
        kept = torch.tensor([all(str(x) not in undecided for x in row) for row in zip(*(t.tolist() for t in tensors), strict=True)])
        tensors = [tensor[kept] for tensor in tensors]
        arguments = [on_device(tensor) for tensor in tensors]
        op(*arguments)
        exact = op(*(tensor.double() for tensor in tensors))
        # A gradient times a slope that is a difference of two numbers of the order of 1, in float32.
        slack = tensors[0].double().abs() * (2**-23 if "backward" in name else 0)
        assert_close_or_nearer(op(*arguments).cpu(), op(*tensors), exact, slack, f"{name} {dtype}")


def add_scaled(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.add(a, b, alpha=3.14)


def power(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return (a.abs() * 1e30).pow(0.9)


@pytest.mark.parametrize(("op", "dtype"), [(add_scaled, torch.bfloat16), (add_scaled, torch.float16), (power, torch.float32)])
def test_the_cpu_rounds_otherwise_at_the_end_of_a_vector(op: Op, dtype: torch.dtype) -> None:
    """As the table of upstream tests says: the last elements of a tensor, and a tensor of one, go through a scalar kernel that rounds
    in other places than its vectors. On `neuron` a value depends on its operands alone."""
    torch.manual_seed(0)
    tensors = [torch.randn(512).to(dtype) for _ in range(3)]

    def one_by_one(device: str) -> torch.Tensor:
        rows = zip(*(tensor.to(device) for tensor in tensors), strict=True)
        return torch.stack([op(*(x.reshape(1) for x in row))[0] for row in rows]).cpu()

    on_cpu = op(*tensors)
    assert not torch.equal(one_by_one("cpu"), on_cpu)
    on_neuron = op(*(on_device(tensor) for tensor in tensors)).cpu()
    assert torch.equal(one_by_one("neuron"), on_neuron) and torch.equal(on_neuron, on_cpu)
