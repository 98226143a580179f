"""Tile functions: each row against PyTorch's CPU kernels, and against itself under other neighbours, layouts, threads and vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

from torch_neuronx import _C

DEVICE = "neuron"
Op = Callable[..., torch.Tensor]

REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGER = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)
NUMBERS = REAL + INTEGER

# What is applied, to how many tensors, of which dtypes.
ROWS: list[tuple[str, Op, int, tuple[torch.dtype, ...]]] = [
    ("clone", torch.clone, 1, NUMBERS + BOOL),
    ("to float32", lambda a: a.to(torch.float32), 1, NUMBERS + BOOL),
    ("to float64", lambda a: a.to(torch.float64), 1, NUMBERS + BOOL),
    ("to bfloat16", lambda a: a.to(torch.bfloat16), 1, NUMBERS + BOOL),
    ("to float16", lambda a: a.to(torch.float16), 1, NUMBERS + BOOL),
    ("to int32", lambda a: a.to(torch.int32), 1, INTEGER + BOOL),
    ("to uint8", lambda a: a.to(torch.uint8), 1, INTEGER + BOOL),
    ("to bool", lambda a: a.to(torch.bool), 1, NUMBERS + BOOL),
    ("zeros_like", torch.zeros_like, 1, NUMBERS + BOOL),
    ("ones_like", torch.ones_like, 1, NUMBERS + BOOL),
    ("full_like", lambda a: torch.full_like(a, 3), 1, NUMBERS + BOOL),
    ("fill_", lambda a: a.clone().fill_(5), 1, NUMBERS + BOOL),
    ("masked_fill", lambda a, b: a.masked_fill(b > 0, 7), 2, NUMBERS),
    ("where", lambda a, b: torch.where(a > b, a, b), 2, NUMBERS),
    ("where scalar", lambda a: torch.where(a > 0, a, 2), 1, NUMBERS),
    ("add", torch.add, 2, NUMBERS),
    ("add alpha", lambda a, b: torch.add(a, b, alpha=2), 2, NUMBERS),
    ("add real alpha", lambda a, b: torch.add(a, b, alpha=0.3), 2, REAL),
    ("add number", lambda a: a + 3, 1, NUMBERS),
    ("add real number", lambda a: a + 0.1, 1, NUMBERS),
    ("sub", torch.sub, 2, NUMBERS),
    ("rsub", lambda a: 3 - a, 1, NUMBERS),
    ("mul", torch.mul, 2, NUMBERS),
    ("mul real number", lambda a: a * 0.1, 1, NUMBERS),
    ("div", torch.div, 2, NUMBERS),
    ("neg", torch.neg, 1, NUMBERS),
    ("abs", torch.abs, 1, NUMBERS),
    ("sign", torch.sign, 1, NUMBERS),
    ("reciprocal", torch.reciprocal, 1, NUMBERS),
    ("sqrt", torch.sqrt, 1, NUMBERS),
    ("rsqrt", torch.rsqrt, 1, NUMBERS),
    ("floor", torch.floor, 1, REAL),
    ("ceil", torch.ceil, 1, REAL),
    ("trunc", torch.trunc, 1, REAL),
    ("round", torch.round, 1, REAL),
    ("maximum", torch.maximum, 2, NUMBERS),
    ("minimum", torch.minimum, 2, NUMBERS),
    ("clamp", lambda a: a.clamp(-1, 2) if a.is_signed() else a.clamp(1, 2), 1, NUMBERS),
    ("clamp min", lambda a: a.clamp(min=1), 1, NUMBERS),
    ("clamp max", lambda a: a.clamp(max=1), 1, NUMBERS),
    ("clamp tensors", lambda a, b: a.clamp(b, b + 1), 2, NUMBERS),
    ("lerp", lambda a, b: torch.lerp(a, b, 0.3), 2, REAL),
    ("lerp far", lambda a, b: torch.lerp(a, b, 0.8), 2, REAL),
    ("lerp tensor", torch.lerp, 3, REAL),
    ("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=2), 3, NUMBERS),
    ("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c.abs() + 1, value=0.5), 3, REAL),
    *((f"pow {n}", lambda a, n=n: a**n, 1, REAL) for n in (2, 3, 0.5, -0.5, -1, -2, 1, 0, 1.7)),
    ("pow tensors", lambda a, b: a.abs() ** b, 2, REAL),
    ("pow of number", lambda a: 2.5**a, 1, REAL),
    ("atan2", torch.atan2, 2, REAL),
    *((name, getattr(torch, name), 2, NUMBERS + BOOL) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    ("gt number", lambda a: a > 0.1, 1, NUMBERS),
    ("isnan", torch.isnan, 1, REAL),
    *((name, getattr(torch, name), 2, NUMBERS + BOOL) for name in ("logical_and", "logical_or", "logical_xor")),
    ("logical_not", torch.logical_not, 1, NUMBERS + BOOL),
    *((name, getattr(torch, name), 2, INTEGER + BOOL) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    ("bitwise_not", torch.bitwise_not, 1, INTEGER + BOOL),
    *(
        (name, getattr(torch, name), 1, REAL)
        for name in (
            *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"),
            *("tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "relu"),
        )
    ),
    ("silu", F.silu, 1, REAL),
    ("mish", F.mish, 1, REAL),
    ("gelu", F.gelu, 1, REAL),
    ("gelu tanh", lambda a: F.gelu(a, approximate="tanh"), 1, REAL),
    ("softplus", lambda a: F.softplus(a, 1.5, 2.0), 1, REAL),
    ("elu", lambda a: F.elu(a, 1.3), 1, REAL),
    ("selu", F.selu, 1, REAL),
    ("leaky_relu", lambda a: F.leaky_relu(a, 0.2), 1, REAL),
    ("hardtanh", F.hardtanh, 1, REAL),
    ("hardsigmoid", F.hardsigmoid, 1, REAL),
    ("hardswish", F.hardswish, 1, REAL),
    ("threshold", lambda a: F.threshold(a, 0.5, 2.0), 1, REAL),
    ("threshold_backward", lambda a, b: torch.ops.aten.threshold_backward(a, b, 0.25), 2, REAL),
    ("silu_backward", torch.ops.aten.silu_backward, 2, REAL),
    ("mish_backward", torch.ops.aten.mish_backward, 2, REAL),
    ("gelu_backward", torch.ops.aten.gelu_backward, 2, REAL),
    ("gelu_backward tanh", lambda a, b: torch.ops.aten.gelu_backward(a, b, approximate="tanh"), 2, REAL),
    ("softplus_backward", lambda a, b: torch.ops.aten.softplus_backward(a, b, 1.5, 2.0), 2, REAL),
    ("elu_backward", lambda a, b: torch.ops.aten.elu_backward(a, 1.3, 1.1, 0.9, False, b), 2, REAL),
    ("elu_backward result", lambda a, b: torch.ops.aten.elu_backward(a, 1.3, 1.1, 0.9, True, b), 2, REAL),
    ("leaky_relu_backward", lambda a, b: torch.ops.aten.leaky_relu_backward(a, b, 0.2, False), 2, REAL),
    ("hardtanh_backward", lambda a, b: torch.ops.aten.hardtanh_backward(a, b, -0.5, 0.5), 2, REAL),
    ("hardsigmoid_backward", torch.ops.aten.hardsigmoid_backward, 2, REAL),
    ("hardswish_backward", torch.ops.aten.hardswish_backward, 2, REAL),
    ("sigmoid_backward", torch.ops.aten.sigmoid_backward, 2, REAL),
    ("tanh_backward", torch.ops.aten.tanh_backward, 2, REAL),
]
IDS = [row[0] for row in ROWS]
SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-42, -1e-42, 1.0, -1.0, 3.0, -3.0, 6.0]


def make(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return torch.randn(shape).mul_(2).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -9, 9, shape).to(dtype)


def layouts(dtype: torch.dtype, count: int) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """`count` CPU tensors each, in the layouts that a row must serve."""
    for shape in ((), (0, 3), (1,), (7,), (64,), (1000,), (3, 5, 7)):
        yield f"contiguous {shape}", [make(dtype, *shape) for _ in range(count)]
    yield "transposed", [make(dtype, 33, 50).t() for _ in range(count)]
    yield "every other", [make(dtype, 20, 66)[:, ::2] for _ in range(count)]
    yield "channels last", [make(dtype, 2, 3, 5, 7).to(memory_format=torch.channels_last) for _ in range(count)]
    yield "expanded", [make(dtype, 1, 37).expand(5, 37) for _ in range(count)]
    if count > 1:
        yield "row", [make(dtype, 6, 37), *(make(dtype, 37) for _ in range(count - 1))]
        yield "column", [make(dtype, 6, 1), *(make(dtype, 6, 37) for _ in range(count - 1))]
        yield "0-dim", [make(dtype, 6, 37), *(make(dtype) for _ in range(count - 1))]
        yield "mixed order", [make(dtype, 12, 10), *(make(dtype, 10, 12).t() for _ in range(count - 1))]


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor on the device, strides included."""
    result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE)
    base = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0).to(DEVICE)
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()) if tensor.numel() else result


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For comparison: NaNs are all alike."""
    tensor = tensor.cpu()
    if not tensor.dtype.is_floating_point:
        return tensor
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    return torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor).contiguous().view(kinds[tensor.element_size()])


# ATen's vector loop and its scalar tail (or oneDNN) give different results for these values themselves.
UNDECIDED = {
    "hardtanh_backward": [math.nan],
    "elu_backward": [math.nan],
    "elu_backward result": [math.nan],
    "hardswish_backward": [math.nan],
    "gelu": [math.inf],
}


# Rows in whose narrow types ATen's vector loop and its scalar tail round differently: two units in the last place, of the operands where
# the result cancels.
TWO_UNITS = ("add real alpha", "sigmoid_backward")


def close(actual: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    """PyTorch's tolerance, but for the rows above."""
    narrow = {torch.bfloat16: 2**-7, torch.float16: 2**-10}.get(expected.dtype)
    limits = {} if narrow is None or not where.startswith(TWO_UNITS) else {"rtol": 2 * narrow, "atol": 2 * narrow}
    torch.testing.assert_close(actual, expected, equal_nan=True, msg=lambda m: f"{where}: {m}", **limits)


@pytest.mark.parametrize(("name", "op", "count", "dtypes"), ROWS, ids=IDS)
def test_row_agrees_with_cpu(name: str, op: Op, count: int, dtypes: tuple[torch.dtype, ...]) -> None:
    torch.manual_seed(0)
    for dtype in dtypes:
        for layout, tensors in layouts(dtype, count):
            arguments = [on_device(t) for t in tensors]
            try:
                expected = op(*tensors)
            except RuntimeError:  # oneDNN's gelu_backward refuses some layouts
                with pytest.raises(RuntimeError):
                    op(*arguments)
                continue
            first, second = op(*arguments), op(*arguments)
            where = f"{name} {dtype} {layout}"
            assert first.dtype == expected.dtype and first.stride() == expected.stride(), where
            assert torch.equal(bits(first), bits(second)), f"{where}: the first call and the second differ"
            close(second.cpu(), expected, where)


@pytest.mark.parametrize(("name", "op", "count", "dtypes"), ROWS, ids=IDS)
def test_special_values(name: str, op: Op, count: int, dtypes: tuple[torch.dtype, ...]) -> None:
    for dtype in dtypes:
        if not dtype.is_floating_point:
            continue
        undecided = [str(value) for value in UNDECIDED.get(name, [])]
        values = [value for value in SPECIAL if str(value) not in undecided]
        grid = torch.meshgrid(*[torch.tensor(values, dtype=dtype)] * count, indexing="ij")
        tensors = [g.reshape(-1) for g in grid]
        actual = op(*[t.to(DEVICE) for t in tensors]).cpu()
        close(actual, op(*tensors), f"{name} {dtype}")


@contextmanager
def other_threads() -> Iterator[None]:
    """Another number of threads than now."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(threads, 2))
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "op", "count", "dtypes"), ROWS, ids=IDS)
def test_a_value_depends_on_its_operands_alone(name: str, op: Op, count: int, dtypes: tuple[torch.dtype, ...]) -> None:
    """Neither its place in a tile, nor what stands beside it, nor the number of threads, nor strides change a bit."""
    torch.manual_seed(1)
    for dtype in dtypes:
        tensors = [make(dtype, 40_003).to(DEVICE) for _ in range(count)]
        whole = bits(op(*tensors))
        for start, end in ((1, 40_003), (13, 30), (2049, 6143), (39_999, 40_003)):
            assert torch.equal(bits(op(*[t[start:end] for t in tensors])), whole[start:end]), f"{name} {dtype} [{start}:{end}]"
        assert torch.equal(bits(op(*[t[::3] for t in tensors])), whole[::3]), f"{name} {dtype} strided"
        with other_threads():
            assert torch.equal(bits(op(*tensors)), whole), f"{name} {dtype} threads"


IN_PLACE: list[tuple[str, Op, int]] = [
    ("add_", lambda x, y: x.add_(y, alpha=2), 2),
    ("mul_", lambda x, y: x.mul_(y), 2),
    ("mul_ itself", lambda x: x.mul_(x), 1),
    ("div_ number", lambda x: x.div_(3), 1),
    ("exp_", lambda x: x.exp_(), 1),
    ("relu_", lambda x: x.relu_(), 1),
    ("clamp_", lambda x: x.clamp_(-1, 1), 1),
    ("lerp_", lambda x, y: x.lerp_(y, 0.25), 2),
    ("addcmul_", lambda x, y, z: x.addcmul_(y, z, value=-0.5), 3),
    ("addcdiv_", lambda x, y, z: x.addcdiv_(y, z.abs() + 1), 3),
    ("masked_fill_", lambda x, y: x.masked_fill_(y > 0, 2), 2),
    ("zero_", lambda x: x.zero_(), 1),
    ("copy_", lambda x, y: x.copy_(y), 2),
    ("eq_", lambda x, y: x.eq_(y), 2),
    ("out=", lambda x, y, z: torch.add(y, z, out=x), 3),
    ("out= an operand", lambda x, y: torch.mul(x, y, out=x), 2),
]


@pytest.mark.parametrize(("name", "op", "count"), IN_PLACE, ids=[row[0] for row in IN_PLACE])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_in_place(name: str, op: Op, count: int, dtype: torch.dtype) -> None:
    """The first call and later ones, on dense memory and on every other element of it; what lies between stays."""
    torch.manual_seed(2)
    for _ in range(2):
        for cut in (slice(None), slice(1, None, 2)):
            bases = [make(dtype, 30, 44) for _ in range(count)]
            devices = [base.to(DEVICE) for base in bases]
            expected = op(*[base[:, cut] for base in bases])
            actual = op(*[base[:, cut] for base in devices])
            torch.testing.assert_close(actual.cpu(), expected)
            torch.testing.assert_close(devices[0].cpu(), bases[0])


def test_overlapping_memory_is_treated_as_on_cpu() -> None:
    for device in ("cpu", DEVICE):
        x = torch.arange(8.0, device=device)
        with pytest.raises(RuntimeError, match=r"single memory location|partially|some elements"):
            x[:-1].add_(x[1:])
        with pytest.raises(RuntimeError, match="more than one element"):
            x[:1].expand(4).mul_(2)
    x, y = torch.arange(9.0), torch.arange(9.0, device=DEVICE)
    x[:3].add_(x[6:]), y[:3].add_(y[6:])
    assert torch.equal(x, y.cpu())


def test_conjugate_and_negative_views() -> None:
    z = torch.randn(5, dtype=torch.complex64)
    for view in (lambda t: t.conj() + 1, lambda t: t.conj().imag * 2, lambda t: t.conj().imag.exp()):
        torch.testing.assert_close(view(z.to(DEVICE)).cpu(), view(z))


def test_a_number_that_does_not_fit_is_an_error_on_every_call() -> None:
    x = torch.zeros(4, dtype=torch.float16, device=DEVICE)
    x.fill_(2.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="without overflow"):
            x.fill_(1e6)
            torch.neuron.synchronize()
    assert torch.equal(x.cpu(), torch.full((4,), 2.0, dtype=torch.float16))


SCRIPT = """
import hashlib, sys, torch
torch.manual_seed(3)
x, y = torch.randn(5003), torch.randn(5003)
exact = hashlib.sha256()
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    a, b = x.to(dtype).neuron(), y.to(dtype).neuron()
    for value in (a + b, a - 2 * b, a * b, a / b, a.abs().sqrt(), torch.where(a > b, a, b), a.clamp(-1, 1), a.to(torch.bfloat16), a > 0.3,
                  torch.addcmul(a, a, b, value=0.3), torch.lerp(a, b, 0.7), torch.relu(a), a.half().float()):
        exact.update(value.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    for op in (torch.exp, torch.tanh, torch.sigmoid, torch.nn.functional.gelu, torch.nn.functional.silu, torch.erf, torch.sin):
        torch.testing.assert_close(op(a).cpu(), op(a.cpu()))
        assert torch.equal(op(a[1:]), op(a)[1:])
print(exact.hexdigest())
"""


def test_every_vector_width_that_this_machine_has(run_python: Callable[..., object]) -> None:
    """Exact operations give the same bits in all of them; the others agree with the CPU in each."""
    digests = {}
    for name in _C._tile_vectors():
        run = run_python(SCRIPT, timeout=300, TORCH_NEURONX_VECTORS=name)
        assert run.returncode == 0, f"{name}: {run.stderr}"  # type: ignore[attr-defined]
        digests[name] = run.stdout.strip()  # type: ignore[attr-defined]
    assert "portable" in digests and len(set(digests.values())) == 1, digests


def test_vectors_that_are_not_there_are_refused(run_python: Callable[..., object]) -> None:
    run = run_python("import torch; torch.ones(3, device='neuron')", TORCH_NEURONX_VECTORS="mmx")
    assert run.returncode != 0 and "portable, avx2, avx512" in run.stderr  # type: ignore[attr-defined]


def test_rows_serve_eager() -> None:
    """Counts: tile functions run what they have rows for, on the first call as well; nothing else runs beside them."""
    x, y = torch.randn(100, device=DEVICE), torch.randn(100, device=DEVICE)
    torch.neuron.synchronize()
    for op, launches in ((lambda: x + y, 1), (lambda: torch.exp(x), 1), (lambda: x.clone().mul_(y), 2), (lambda: x @ y, 0)):
        op()
        torch.neuron.synchronize()
        before = _C._counters()["tile_launches"]
        op()
        torch.neuron.synchronize()
        assert _C._counters()["tile_launches"] - before == launches
