"""Scaled and grouped matrix products: every recipe against a float32 reference, gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType, SwizzleType
from torch.testing._internal.common_quantized import to_blocked

import torch_neuronx

DEVICE = "neuron"
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
FP4 = torch.float4_e2m1fn_x2
TENSOR, ROW, MX, NV = ScalingType.TensorWise, ScalingType.RowWise, ScalingType.BlockWise1x32, ScalingType.BlockWise1x16
BY_1, BY_128 = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
SWIZZLED = SwizzleType.SWIZZLE_32_4_4


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def ceil_div(size: int, block: int) -> int:
    return -(-size // block)


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape).mul(2).to(dtype)


def powers(*shape: int) -> torch.Tensor:
    """Scales that are powers of two: they add no rounding."""
    return torch.exp2(torch.randint(-3, 4, shape).float())


def check(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
    assert actual.device.type == DEVICE and actual.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3, E4M3: 0.07, E5M2: 0.13}[dtype]
    torch.testing.assert_close(actual.cpu().float(), expected, rtol=tolerance, atol=tolerance)


def spread(table: torch.Tensor, row_block: int, k_block: int, rows: int, k: int) -> torch.Tensor:
    return table.repeat_interleave(row_block, 0).repeat_interleave(k_block, 1)[:rows, :k]


def column_major(rows: torch.Tensor) -> torch.Tensor:
    return rows.to(DEVICE).t()


# ---- One pair of matrices ----

M, K, N = 96, 320, 144


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("dtype_a", "dtype_b"), [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)])
@pytest.mark.parametrize("recipe", ["tensor", "row"])
def test_tensor_and_row_scales(recipe: str, dtype_a: torch.dtype, dtype_b: torch.dtype, out_dtype: torch.dtype) -> None:
    a, b = random(dtype_a, 15, 48), random(dtype_b, 32, 48)
    scale_a, scale_b = (torch.rand(()), torch.rand(())) if recipe == "tensor" else (torch.rand(15, 1), torch.rand(1, 32))
    expected = (a.float() * scale_a) @ (b.float().t() * scale_b)
    actual = torch._scaled_mm(a.to(DEVICE), column_major(b), scale_a.to(DEVICE), scale_b.to(DEVICE), out_dtype=out_dtype)
    check(actual, expected, out_dtype)
    type_ = TENSOR if recipe == "tensor" else ROW
    same = F.scaled_mm(a.to(DEVICE), column_major(b), scale_a.to(DEVICE), type_, scale_b.to(DEVICE), type_, output_dtype=out_dtype)
    assert torch.equal(same, actual)


def test_equals_cpu() -> None:
    a, b, bias = random(E4M3, 15, 32), random(E5M2, 16, 32), torch.randn(16).bfloat16()
    one, half = torch.tensor(1.0), torch.tensor(0.5)
    expected = torch._scaled_mm(a, b.t(), one, half, bias=bias, out_dtype=torch.float32)
    check(
        torch._scaled_mm(a.to(DEVICE), column_major(b), one.to(DEVICE), half.to(DEVICE), bias=bias.to(DEVICE), out_dtype=torch.float32),
        expected,
    )


def block_scale(type_: ScalingType, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale as a table of row blocks x K blocks, and spread over the values."""
    row_block = 1 if type_ == BY_1 else 128
    table = torch.rand(ceil_div(rows, row_block), ceil_div(K, 128)) + 0.5
    return table, spread(table, row_block, 128, rows, K)


def as_v2(type_: ScalingType, table: torch.Tensor) -> torch.Tensor:
    """What scaled_mm takes: 1x128 scales column-major; 128x128 ones transposed, K blocks padded to 4."""
    if type_ == BY_1:
        return table.t().contiguous().t()
    return F.pad(table, (0, -table.shape[1] % 4)).t()


@pytest.mark.parametrize(("type_a", "type_b"), [(BY_1, BY_1), (BY_1, BY_128), (BY_128, BY_1), (BY_128, BY_128)])
def test_blocks_of_128(type_a: ScalingType, type_b: ScalingType) -> None:
    a, b = random(E4M3, M, K), random(E4M3, N, K)
    (table_a, full_a), (table_b, full_b) = block_scale(type_a, M), block_scale(type_b, N)
    expected = (a.float() * full_a) @ (b.float() * full_b).t()
    x, y = a.to(DEVICE), column_major(b)
    check(torch._scaled_mm(x, y, table_a.to(DEVICE), table_b.t().to(DEVICE), out_dtype=torch.float32), expected)
    v2 = F.scaled_mm(
        x, y, as_v2(type_a, table_a).to(DEVICE), type_a, as_v2(type_b, table_b).to(DEVICE), type_b, output_dtype=torch.bfloat16
    )
    check(v2, expected, torch.bfloat16)


def test_mx_scales() -> None:
    a, b = random(E4M3, M, K), random(E4M3, N, K)
    scale_a, scale_b = powers(M, K // 32).to(E8M0), powers(N, K // 32).to(E8M0)
    expected = (a.float() * spread(scale_a.float(), 1, 32, M, K)) @ (b.float() * spread(scale_b.float(), 1, 32, N, K)).t()
    x, y = a.to(DEVICE), column_major(b)
    flat_a, flat_b = to_blocked(scale_a).to(DEVICE), to_blocked(scale_b).to(DEVICE)
    check(torch._scaled_mm(x, y, flat_a, flat_b, out_dtype=torch.float32), expected)
    check(F.scaled_mm(x, y, flat_a, MX, flat_b, MX, SWIZZLED, SWIZZLED, output_dtype=torch.float32), expected)
    plain = F.scaled_mm(x, y, scale_a.to(DEVICE), MX, scale_b.to(DEVICE), MX, output_dtype=torch.float32)
    check(plain, expected)


FP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def random_fp4(rows: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed values and what they mean; the first of each pair is in the low half of the byte."""
    codes = torch.randint(0, 16, (rows, k), dtype=torch.uint8)
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).view(FP4), FP4_VALUES[codes.long()]


@pytest.mark.parametrize("levels", [1, 2])
def test_nv_scales_of_fp4(levels: int) -> None:
    (a, values_a), (b, values_b) = random_fp4(M, K), random_fp4(N, K)
    scale_a, scale_b = powers(M, K // 16).to(E4M3), powers(N, K // 16).to(E4M3)
    top_a, top_b = torch.tensor(0.25), torch.tensor(2.0)
    expected = (values_a * spread(scale_a.float(), 1, 16, M, K)) @ (values_b * spread(scale_b.float(), 1, 16, N, K)).t()
    if levels == 2:
        expected = expected * top_a * top_b
    side_a = [to_blocked(scale_a).to(DEVICE), top_a.to(DEVICE)][:levels]
    side_b = [to_blocked(scale_b).to(DEVICE), top_b.to(DEVICE)][:levels]
    recipes, swizzles = [NV, TENSOR][:levels], [SWIZZLED, SwizzleType.NO_SWIZZLE][:levels]
    actual = F.scaled_mm(a.to(DEVICE), column_major(b), side_a, recipes, side_b, recipes, swizzles, swizzles, output_dtype=torch.float32)
    check(actual, expected)


def test_result_options() -> None:
    a, b, bias = random(E4M3, 16, 32), random(E4M3, 48, 32), torch.randn(48)
    x, y, one = a.to(DEVICE), column_major(b), torch.ones((), device=DEVICE)
    product = a.float() @ b.float().t()
    check(torch._scaled_mm(x, y, one, one, bias=bias.to(DEVICE), out_dtype=torch.float32), product + bias)
    scale = torch.tensor(0.1, device=DEVICE)
    check(torch._scaled_mm(x, y, one, one, scale_result=scale), product * 0.1, E4M3)
    check(torch._scaled_mm(x, y, one, one, out_dtype=E5M2), product, E5M2)
    out = torch.empty(16, 48, device=DEVICE, dtype=torch.bfloat16)
    assert torch._scaled_mm(x, y, one, one, out_dtype=torch.bfloat16, out=out) is out
    check(out, product, torch.bfloat16)


def test_any_strides_and_empty() -> None:
    a, b = random(E4M3, 32, 16), random(E4M3, 32, 8)
    one = torch.ones((), device=DEVICE)
    check(torch._scaled_mm(a.to(DEVICE).t(), b.to(DEVICE), one, one, out_dtype=torch.float32), a.float().t() @ b.float())
    empty = torch._scaled_mm(a.to(DEVICE).t()[:0], b.to(DEVICE), one, one, out_dtype=torch.float32)
    assert empty.shape == (0, 8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"self": torch.randn(16, 32)}, ValueError, "both inputs to be float8"),
        ({"self": random(E4M3, 16, 48)}, RuntimeError, "cannot be multiplied"),
        ({"self": random(E4M3, 16)}, RuntimeError, "must be a matrix"),
        ({"scale_a": torch.rand(15, 1)}, ValueError, r"Invalid scaling configuration[\s\S]*Got scale_a of \[15, 1\]"),
        ({"scale_a": torch.ones((), dtype=torch.float64)}, ValueError, "Invalid scaling configuration"),
        ({"scale_a": torch.rand(16, 1)}, ValueError, "Invalid scaling configuration"),
        ({"bias": torch.rand(47)}, RuntimeError, "Bias must be size 48 but got 47"),
        ({"out_dtype": torch.int32}, ValueError, "out_dtype must be a floating dtype"),
    ],
)
def test_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"self": random(E4M3, 16, 32), "mat2": random(E4M3, 48, 32).t(), "scale_a": torch.ones(()), "scale_b": torch.ones(())}
    arguments |= change
    on_device = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    with pytest.raises(error, match=message):
        torch.ops.aten._scaled_mm(**on_device)


@pytest.mark.parametrize(
    ("recipe", "shape", "swizzle", "message"),
    [
        (BY_128, (1, 1), [], "scale_a must have 3 Float elements"),
        (MX, (M, K // 32), [SWIZZLED], "Float8_e8m0fnu"),
        (ROW, (M, 1), [SWIZZLED], "are not swizzled"),
    ],
)
def test_wrong_scale_for_a_recipe(recipe: ScalingType, shape: tuple[int, ...], swizzle: list[SwizzleType], message: str) -> None:
    a, b = random(E4M3, M, K).to(DEVICE), column_major(random(E4M3, N, K))
    scale = torch.ones(shape, device=DEVICE)
    with pytest.raises(ValueError, match=message):
        F.scaled_mm(a, b, scale, recipe, scale, recipe, swizzle, swizzle)


class Float8Linear(torch.autograd.Function):
    """float8 training as libraries write it: e4m3 forward, e5m2 gradients, all three products scaled."""

    @staticmethod
    def quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax().float() / torch.finfo(dtype).max
        return (x / scale).to(dtype), scale

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        (qx, sx), (qw, sw) = Float8Linear.quantise(x, E4M3), Float8Linear.quantise(weight, E4M3)
        return torch._scaled_mm(qx, qw.t(), sx, sw, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        qg, sg = Float8Linear.quantise(grad, E5M2)
        (qx, sx), (qw, sw) = Float8Linear.quantise(x, E4M3), Float8Linear.quantise(weight, E4M3)
        grad_x = torch._scaled_mm(qg, qw.t().contiguous().t(), sg, sw, out_dtype=torch.float32)
        grad_weight = torch._scaled_mm(qg.t().contiguous(), qx.t().contiguous().t(), sg, sx, out_dtype=torch.float32)
        return grad_x, grad_weight


def test_float8_training_step() -> None:
    x, weight, grad = torch.randn(64, 32, requires_grad=True), torch.randn(48, 32, requires_grad=True), torch.randn(64, 48)
    on_device = [t.detach().to(DEVICE).requires_grad_() for t in (x, weight)]
    actual = Float8Linear.apply(*on_device)
    actual.backward(grad.to(DEVICE))
    expected = x @ weight.t()
    expected.backward(grad)

    def error(ours: torch.Tensor, reference: torch.Tensor) -> float:
        return ((ours.cpu() - reference).norm() / reference.norm()).item()

    assert error(actual.detach(), expected.detach()) < 0.05
    assert error(on_device[0].grad, x.grad) < 0.08
    assert error(on_device[1].grad, weight.grad) < 0.08


# ---- Groups ----

ENDS = [16, 48, 48, 96]  # the third group is empty
GROUPS = len(ENDS)


def offsets(ends: list[int] = ENDS) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32, device=DEVICE)


def spans() -> list[slice]:
    return [slice(begin, end) for begin, end in zip([0, *ENDS[:-1]], ENDS, strict=True)]


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The four forms, in the operands' dtype."""
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, span] @ b[span] for span in spans()])
    if a.dim() == 2:
        return torch.cat([a[span] @ b[group] for group, span in enumerate(spans())])
    if b.dim() == 2:
        return torch.cat([a[group] @ b[:, span] for group, span in enumerate(spans())], 1)
    return a @ b


SHAPES = {
    "2d3d": ((96, 32), (GROUPS, 32, 48)),
    "3d3d": ((GROUPS, 24, 32), (GROUPS, 32, 48)),
    "3d2d": ((GROUPS, 24, 32), (32, 96)),
    "2d2d": ((24, 96), (96, 48)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", SHAPES)
def test_grouped_mm_and_gradients(form: str, dtype: torch.dtype) -> None:
    # Column-major mat_b, as CUDA wants it and as the gradient's layout then is.
    shape_a, shape_b = SHAPES[form]
    a = torch.randn(shape_a, dtype=dtype)
    b = torch.randn(shape_b, dtype=dtype).mT.contiguous().mT
    offs = None if form == "3d3d" else offsets()
    x, y = a.to(DEVICE).requires_grad_(), b.to(DEVICE).requires_grad_()
    out = F.grouped_mm(x, y, offs=offs)
    a, b = a.float().requires_grad_(), b.float().requires_grad_()
    expected = reference(a, b)
    check(out.detach(), expected.detach(), dtype)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    out.backward(grad.to(DEVICE, dtype))
    # The gradient itself is rounded to the dtype before it is multiplied.
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}[dtype]
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(x.grad.cpu().float(), a.grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(y.grad.cpu().float(), b.grad, rtol=tolerance, atol=tolerance)


def test_grouped_mm_accepts_an_expanded_gradient() -> None:
    x, w = torch.randn(96, 32, device=DEVICE, requires_grad=True), torch.randn(GROUPS, 32, 48, device=DEVICE, requires_grad=True)
    F.grouped_mm(x, w, offs=offsets()).sum().backward()
    check(x.grad, torch.cat([w.detach().cpu()[g].sum(1).expand(s.stop - s.start, 32) for g, s in enumerate(spans())]))


def test_grouped_mm_accumulates_in_float32() -> None:
    a, b = torch.randn(96, 32).bfloat16(), torch.randn(GROUPS, 32, 48).bfloat16()
    check(F.grouped_mm(a.to(DEVICE), b.to(DEVICE), offs=offsets(), out_dtype=torch.float32), reference(a.float(), b.float()))


def test_rows_of_no_group_are_zero() -> None:
    out = F.grouped_mm(torch.randn(100, 32, device=DEVICE), torch.randn(GROUPS, 32, 48, device=DEVICE), offs=offsets())
    assert out.shape == (100, 48) and not out[96:].any() and out[:96].any()


def test_grouped_mm_does_not_wait_for_the_device() -> None:
    a, b, offs = torch.randn(96, 32, device=DEVICE), torch.randn(GROUPS, 32, 48, device=DEVICE), offsets()
    F.grouped_mm(a, b, offs=offs)
    with torch_neuronx.explain() as report:
        F.grouped_mm(a, b, offs=offs)
    assert report.syncs == 0 and report.hits == report.calls == 1


def scaled(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return values.float() * scale


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("form", SHAPES)
def test_scaled_grouped_mm_of_rows(form: str, dtype: torch.dtype) -> None:
    shape_a, shape_b = SHAPES[form]
    a, b = random(dtype, *shape_a), random(E4M3, *shape_b).mT.contiguous().mT
    m, n = shape_a[-2], shape_b[-1]
    if form == "2d2d":
        scale_a, scale_b = torch.rand(GROUPS * m), torch.rand(GROUPS * n)
        full_a = torch.cat([scaled(a[:, s], scale_a[g * m : (g + 1) * m, None]) for g, s in enumerate(spans())], 1)
        full_b = torch.cat([scaled(b[s], scale_b[None, g * n : (g + 1) * n]) for g, s in enumerate(spans())], 0)
    else:
        scale_a, scale_b = torch.rand(shape_a[:-1]), torch.rand((*shape_b[:-2], n))
        full_a, full_b = scaled(a, scale_a.unsqueeze(-1)), scaled(b, scale_b.unsqueeze(-2))
    offs = None if form == "3d3d" else offsets()
    x, y = a.to(DEVICE), b.to(DEVICE)
    expected = reference(full_a, full_b)
    actual = torch._scaled_grouped_mm(x, y, scale_a.to(DEVICE), scale_b.to(DEVICE), offs=offs, out_dtype=torch.bfloat16)
    check(actual, expected, torch.bfloat16)
    same = F.scaled_grouped_mm(x, y, scale_a.to(DEVICE), ROW, scale_b.to(DEVICE), ROW, offs=offs)
    assert torch.equal(same, actual)


def test_scaled_grouped_mm_of_mx_blocks() -> None:
    groups, k = len(ENDS), 320
    a, b = random(E4M3, ENDS[-1], k), random(E4M3, groups, 48, k)
    scale_a, scale_b = powers(ENDS[-1], k // 32).to(E8M0), powers(groups, 48, k // 32).to(E8M0)
    full_a = a.float() * scale_a.float().repeat_interleave(32, 1)
    full_b = b.float() * scale_b.float().repeat_interleave(32, 2)
    # Each group's scales are padded and swizzled by themselves.
    flat_a = torch.cat([to_blocked(scale_a[s]) for s in spans() if s.stop > s.start]).view(-1, 12)
    flat_b = torch.stack([to_blocked(scale_b[group]) for group in range(groups)])
    expected = reference(full_a, full_b.mT)
    x, y = a.to(DEVICE), b.to(DEVICE).mT
    actual = torch._scaled_grouped_mm(x, y, flat_a.to(DEVICE), flat_b.to(DEVICE), offs=offsets(), out_dtype=torch.float32)
    check(actual, expected)
    same = F.scaled_grouped_mm(
        x, y, flat_a.to(DEVICE), MX, flat_b.to(DEVICE), MX, SWIZZLED, SWIZZLED, offs=offsets(), output_dtype=torch.float32
    )
    assert torch.equal(same, actual)


@pytest.mark.parametrize(("ends", "message"), [([16, 48, 40, 96], r"offs\[2\] is 40"), ([16, 48, 48, 97], r"offs\[3\] is 97")])
def test_bad_offsets_are_refused(ends: list[int], message: str) -> None:
    a, b = torch.randn(96, 32, device=DEVICE), torch.randn(GROUPS, 32, 48, device=DEVICE)
    F.grouped_mm(a, b, offs=offsets())  # so that the next call is a hit, whose error comes at the synchronisation
    with pytest.raises(RuntimeError, match=message):
        F.grouped_mm(a, b, offs=offsets(ends)).cpu()
    check(F.grouped_mm(a, b, offs=offsets()), reference(a.cpu(), b.cpu()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offs": None}, "Have to provide offsets"),
        ({"offs": torch.tensor(ENDS)}, "have to be int32"),
        ({"offs": torch.tensor(ENDS[:-1], dtype=torch.int32)}, "matrix batch sizes have to match"),
        ({"bias": torch.randn(48)}, "Bias not supported yet"),
        ({"self": torch.randn(96, 31)}, "contraction dimension"),
        ({"self": torch.randn(96, 32).double(), "mat2": torch.randn(GROUPS, 32, 48).double()}, "Expected mat_a"),
        ({"out_dtype": torch.bfloat16}, "output dtype must match"),
    ],
)
def test_grouped_mm_refuses(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"self": torch.randn(96, 32), "mat2": torch.randn(GROUPS, 32, 48), "offs": offsets()} | change
    on_device = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    with pytest.raises(RuntimeError, match=message):
        torch.ops.aten._grouped_mm(**on_device)
