"""Row functions: against PyTorch's CPU kernels, and against themselves in other rows, layouts, threads and vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from tests.test_tiles import DEVICE, REAL, bits, close, make, on_device, other_threads
from torch_neuronx import _C

aten = torch.ops.aten
Op = Callable[..., torch.Tensor]


def ramp(like: torch.Tensor) -> torch.Tensor:
    """A row of weights that depends on nothing but its length."""
    return torch.arange(like.shape[-1], device=like.device).remainder(31).to(like.dtype) / 16


# What is applied, to how many tensors of one shape.
ROWS: list[tuple[str, Op, int]] = [
    ("softmax", lambda a: F.softmax(a, -1), 1),
    ("log_softmax", lambda a: F.log_softmax(a, -1), 1),
    ("layer_norm", lambda a: F.layer_norm(a, a.shape[-1:]), 1),
    ("layer_norm weight", lambda a: F.layer_norm(a, a.shape[-1:], ramp(a)), 1),
    ("layer_norm bias", lambda a: F.layer_norm(a, a.shape[-1:], None, ramp(a)), 1),
    ("layer_norm weight and bias", lambda a: F.layer_norm(a, a.shape[-1:], ramp(a), 1 - ramp(a)), 1),
    ("softmax backward", lambda g, a: aten._softmax_backward_data(g, F.softmax(a, -1), -1, g.dtype), 2),
    ("log_softmax backward", lambda g, a: aten._log_softmax_backward_data(g, F.log_softmax(a, -1), -1, g.dtype), 2),
]
IDS = [row[0] for row in ROWS]


def layouts(dtype: torch.dtype, count: int) -> Iterator[tuple[str, list[torch.Tensor]]]:
    for shape in ((3,), (1, 2), (5, 3), (7, 16), (2, 3, 33), (40, 1000), (2, 70_000)):
        yield f"contiguous {shape}", [make(dtype, *shape) for _ in range(count)]
    yield "transposed", [make(dtype, 33, 50).t() for _ in range(count)]
    yield "every other", [make(dtype, 20, 66)[:, ::2] for _ in range(count)]
    yield "expanded", [make(dtype, 1, 37).expand(5, 37) for _ in range(count)]


@pytest.mark.parametrize(("name", "op", "count"), ROWS, ids=IDS)
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_agrees_with_cpu(name: str, op: Op, count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for layout, tensors in layouts(dtype, count):
        expected, arguments = op(*tensors), [on_device(t) for t in tensors]
        first, second = op(*arguments), op(*arguments)
        where = f"{name} {dtype} {layout}"
        assert second.dtype == expected.dtype and second.stride() == expected.stride(), where
        assert torch.equal(bits(first), bits(second)), f"{where}: the first call and the second differ"
        close(second.cpu(), expected, where)


@pytest.mark.parametrize(("name", "op", "count"), ROWS, ids=IDS)
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_a_row_depends_on_itself_alone(name: str, op: Op, count: int, dtype: torch.dtype) -> None:
    """Neither its place, nor what stands beside it, nor the number of threads, nor strides change a bit."""
    torch.manual_seed(1)
    for size in (5, 64, 333):
        tensors = [make(dtype, 501, size).to(DEVICE) for _ in range(count)]
        whole = bits(op(*tensors))
        for start, end in ((1, 501), (13, 14), (100, 300)):
            assert torch.equal(bits(op(*[t[start:end] for t in tensors])), whole[start:end]), f"{name} {size} [{start}:{end}]"
        apart = [torch.stack([t, t], -1)[..., 0] for t in tensors]
        assert torch.equal(bits(op(*apart)), whole), f"{name} {size} strided"
        turned = [t.t().contiguous().t() for t in tensors]
        assert torch.equal(bits(op(*turned)), whole), f"{name} {size} transposed"
        with other_threads():
            assert torch.equal(bits(op(*tensors)), whole), f"{name} {size} threads"


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("size", [3, 16, 33, 256, 1000, 20_000])
def test_layer_norm_and_its_moments(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(2)
    x, weight, bias = make(dtype, 2, 3, size), make(dtype, size), make(dtype, size)
    for w, b in ((weight, bias), (weight, None), (None, bias), (None, None)):
        arguments = [None if t is None else t.to(DEVICE) for t in (w, b)]
        expected = aten.native_layer_norm(x, (size,), w, b, 1e-5)
        for _ in range(2):
            for got, wanted in zip(aten.native_layer_norm(x.to(DEVICE), (size,), *arguments, 1e-5), expected, strict=True):
                assert got.dtype == wanted.dtype and got.shape == wanted.shape and got.stride() == wanted.stride()
                torch.testing.assert_close(got.cpu(), wanted)


def test_layer_norm_over_several_dimensions_and_far_from_zero() -> None:
    torch.manual_seed(3)
    x = torch.randn(4, 5, 6, 7) + 1000
    for dims in (1, 2, 3):
        shape = x.shape[4 - dims :]
        weight = torch.randn(shape)
        got = F.layer_norm(x.to(DEVICE), shape, weight.to(DEVICE), eps=0.1)
        torch.testing.assert_close(got.cpu(), F.layer_norm(x, shape, weight, eps=0.1))


def test_special_values() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[0.0, -inf, 1.0], [-inf, -inf, -inf], [inf, 0.0, 1.0], [nan, 0.0, 1.0], [-0.0, 1e-42, -1e-42], [3e38, -3e38, 0.0]])
    for op in (lambda a: F.softmax(a, -1), lambda a: F.log_softmax(a, -1), lambda a: F.layer_norm(a, (3,))):
        for dtype in REAL:
            torch.testing.assert_close(op(x.to(dtype).to(DEVICE)).cpu(), op(x.to(dtype)), equal_nan=True)


def test_what_the_rows_serve() -> None:
    """Counts: the last dimension runs as a tile function, all else by ATen's kernel; the results are PyTorch's either way."""
    x = torch.randn(6, 5, 4)
    cases: list[tuple[Op, int]] = [
        (lambda a: F.softmax(a, 2), 1),
        (lambda a: F.softmax(a, -1), 1),
        (lambda a: F.softmax(a, 1), 0),
        (lambda a: F.softmax(a[..., :1], -1), 0),  # rows of one element
        (lambda a: F.softmax(a[:0], -1), 1),
        (lambda a: F.softmax(a[0, 0, 0], 0), 0),
        (lambda a: F.layer_norm(a, (4,)), 1),
        (lambda a: F.layer_norm(a, (5, 4)), 1),
        (lambda a: F.layer_norm(a[..., :1], (1,)), 0),
        (lambda a: F.layer_norm(a[:0], (4,)), 0),
    ]
    for op, launches in cases:
        a = x.to(DEVICE)
        op(a)
        torch.neuron.synchronize()
        before = _C._counters()["tile_launches"]
        result = op(a)
        torch.neuron.synchronize()
        assert _C._counters()["tile_launches"] - before == launches
        torch.testing.assert_close(result.cpu(), op(x))


def test_out_and_mistakes() -> None:
    x = torch.randn(6, 5)
    for dim in (0, 1):
        out = torch.empty(6, 5, device=DEVICE)
        for result in (out, torch.empty(0, device=DEVICE), torch.empty(5, 6, device=DEVICE).t()):
            for _ in range(2):
                torch.softmax(x.to(DEVICE), dim, out=result)
                torch.testing.assert_close(result.cpu(), torch.softmax(x, dim))
    with pytest.raises(IndexError):
        F.softmax(x.to(DEVICE), 2)
    with pytest.raises(RuntimeError):
        aten._softmax_backward_data(x.to(DEVICE), x[:, :4].contiguous().to(DEVICE), -1, x.dtype)
        torch.neuron.synchronize()


SCRIPT = """
import torch
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    for size in (3, 100, 1003):
        torch.manual_seed(size)
        x, g = torch.randn(20, size).to(dtype), torch.randn(20, size).to(dtype)
        for op in (torch.softmax, torch.log_softmax):
            torch.testing.assert_close(op(x.neuron(), -1).cpu(), op(x, -1))
            assert torch.equal(op(x.neuron()[3:5], -1), op(x.neuron(), -1)[3:5])
        norm = torch.nn.functional.layer_norm
        torch.testing.assert_close(norm(x.neuron(), (size,), g[0].neuron(), g[1].neuron()).cpu(), norm(x, (size,), g[0], g[1]))
"""


@pytest.mark.parametrize("name", _C._tile_vectors())
def test_every_vector_width_that_this_machine_has(name: str, run_python: Callable[..., object]) -> None:
    run = run_python(SCRIPT, timeout=300, TORCH_NEURONX_VECTORS=name)
    assert run.returncode == 0, run.stderr  # type: ignore[attr-defined]
