"""The databases of elementwise ops, reductions, shape functions and Python references: values and layouts that samples leave out.

Inputs are drawn on the CPU and moved with their strides; the CPU's result is the reference, its refusal takes the input out.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import OpDTypes, ops
from torch.testing._internal.common_methods_invocations import binary_ufuncs, python_ref_db, reduction_ops, shape_funcs, unary_ufuncs
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.opinfo.expectations import HOST_ARGUMENTS
from tests.opinfo.samples import Placement

from .op_samples import host, tensors
from .reference import assert_matches, draws

SAMPLES = 60  # of one generator, the first
ELEMENTS = 70_000  # PyTorch's million-element inputs are left out: a few thousand elements reach all paths of a kernel
DTYPES = (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64)
PROMOTED = (*DTYPES, torch.float64)
REDUCED_SHAPE = (3, 4, 5)
DIMS: tuple[Any, ...] = ("default", None, 0, -1, (), (0, 2), (0, 1, 2), (1, 1), 3)  # two of them are errors on every device

Call = tuple[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]]


def run(call: Call, device: str) -> Any:
    function, value, args, kwargs = call
    value, args, kwargs = Placement(device)((value, args, kwargs))
    with torch.no_grad():
        return function(value, *args, **kwargs)


def samples_of(op: OpInfo, names: Iterable[str], dtype: torch.dtype) -> Iterator[Call]:
    """What PyTorch's generators ``names`` of opinfo/core.py draw for ``op``."""
    for name in names:
        try:
            samples = list(islice(getattr(core, name)(op, device="cpu", dtype=dtype, requires_grad=False), SAMPLES))
        except ValueError as error:
            if str(error) != "Unsupported dtype!":  # such as extremal values of integers
                raise
            continue
        for sample in samples:
            operands = [value for value in (sample.input, *sample.args) if isinstance(value, torch.Tensor)]
            if operands and operands[0].numel() <= ELEMENTS:  # two Python numbers give a tensor on the CPU, whatever the device
                yield op.op, sample.input, sample.args, sample.kwargs


class Compares(TestCase):
    def compare(self, calls: Iterable[Call], device: str) -> None:
        """Every call gives on ``device`` what it gives on the CPU; skipped when the CPU refuses all."""
        compared = 0
        for call in calls:
            try:
                expected = run(call, "cpu")
            except Exception:
                continue
            compared += 1
            actual = run(call, device)
            try:
                assert_matches(self, actual, expected, device)
            except AssertionError:
                if not draws(lambda call=call: run(call, "cpu")):
                    raise
                assert_matches(self, actual, expected, device, values=False)
        if not compared:
            self.skipTest("the CPU refuses all samples, or there are none")


class TestUnaryUfuncs(Compares):
    @ops(unary_ufuncs, allowed_dtypes=DTYPES)
    def test_values(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Small, large and extremal values: infinities, NaN, denormals, the ends of the integers."""
        self.compare(
            samples_of(op, [f"generate_elementwise_unary_{kind}_value_tensors" for kind in ("small", "large", "extremal")], dtype), device
        )

    @ops(unary_ufuncs, allowed_dtypes=DTYPES)
    def test_layouts(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Empty, 0-dim and odd sizes; gaps, transposed, expanded, overlapping."""
        kinds = ("tensors", "noncontiguous_tensors", "arbitrarily_strided_tensors")
        self.compare(samples_of(op, [f"generate_elementwise_unary_{kind}" for kind in kinds], dtype), device)


class TestBinaryUfuncs(Compares):
    @ops(binary_ufuncs, allowed_dtypes=DTYPES)
    def test_values(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        kinds = ("small", "large", "extremal")
        self.compare(samples_of(op, [f"generate_elementwise_binary_{kind}_value_tensors" for kind in kinds], dtype), device)

    @ops(binary_ufuncs, allowed_dtypes=DTYPES)
    def test_layouts(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        kinds = ("tensors", "noncontiguous_tensors", "arbitrarily_strided_tensors", "broadcasting_tensors")
        self.compare(samples_of(op, [f"generate_elementwise_binary_{kind}" for kind in kinds], dtype), device)

    @ops(binary_ufuncs, allowed_dtypes=DTYPES)
    def test_scalars(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        kinds = ("scalar_samples", "scalar_and_type_promotion_samples")
        self.compare(samples_of(op, [f"generate_elementwise_binary_with_{kind}" for kind in kinds], dtype), device)

    @ops(binary_ufuncs, allowed_dtypes=DTYPES)
    def test_type_promotion(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The other operand in each dtype, as a tensor, a 0-dim tensor on the device, and one on the CPU; then in place."""

        def calls() -> Iterator[Call]:
            for other in PROMOTED:
                left = make_tensor((3, 4), device="cpu", dtype=dtype, **op.lhs_make_tensor_kwargs)
                for shape in ((3, 4), (), (4,)):
                    right = make_tensor(shape, device="cpu", dtype=other, **op.rhs_make_tensor_kwargs)
                    yield op.op, left, (right,), op.sample_kwargs("cpu", dtype, left)[0]
                    yield op.op, right, (left,), {}
                    if op.inplace_variant is not None:
                        yield op.inplace_variant, left, (right,), {}
                yield (lambda value, number: op.op(value, torch.tensor(number, dtype=other)), left, (2,), {})  # noqa: B023

        self.compare(calls(), device)


class TestReductions(Compares):
    def calls(self, op: OpInfo, values: Iterable[torch.Tensor], dims: Iterable[Any] = DIMS) -> Iterator[Call]:
        for value in values:
            for dim in dims:
                for keepdim in (False, True):
                    place = {} if dim == "default" else {"dim": dim, "keepdim": keepdim}
                    for args, kwargs in op.generate_args_kwargs(value, **place):
                        yield op.op, value, args, {**place, **kwargs}

    @ops(reduction_ops, allowed_dtypes=DTYPES)
    def test_dims(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Every form of ``dim`` and ``keepdim``."""
        value = make_tensor(REDUCED_SHAPE, device="cpu", dtype=dtype)
        self.compare(self.calls(op, [value]), device)

    @ops(reduction_ops, allowed_dtypes=DTYPES)
    def test_layouts(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """0-dim, empty (along and beside the dimension), transposed, expanded, with gaps inside and outside."""
        value = make_tensor((4, 6, 6), device="cpu", dtype=dtype)
        values = [
            value[0, 0, 0],
            value[:0],
            value[:, :, :0],
            value.transpose(0, 2),
            value[:1].expand(3, 6, 6),
            value[:, :, ::2],
            value[::2],
            value.contiguous(memory_format=torch.contiguous_format).unsqueeze(0).contiguous(memory_format=torch.channels_last)[0],
        ]
        self.compare(self.calls(op, values, ("default", 0, -1, (0, 1))), device)

    @ops(reduction_ops, allowed_dtypes=DTYPES)
    def test_values(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """NaN, infinities and large values; long enough for the vectorized and the cascading sums."""
        long = make_tensor((ELEMENTS + 1,), device="cpu", dtype=dtype)
        values = [long, long[:ELEMENTS].view(2, -1)]
        if dtype.is_floating_point or dtype.is_complex:
            for special in (float("nan"), float("inf"), -float("inf"), torch.finfo(dtype).max):
                spoiled = make_tensor((5, 7), device="cpu", dtype=dtype)
                spoiled[1, 2] = special
                values.append(spoiled)
        self.compare(self.calls(op, values, ("default", 0, -1)), device)

    @ops(
        [op for op in reduction_ops if op.name in ("sum", "prod", "mean", "nansum", "cumsum", "cumprod", "linalg.vector_norm")],
        allowed_dtypes=DTYPES,
    )
    def test_result_dtype(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """``dtype=`` chooses the dtype of the accumulation and of the result."""
        value = make_tensor(REDUCED_SHAPE, device="cpu", dtype=dtype)
        self.compare(
            ((op.op, value, args, {**kwargs, "dtype": out}) for out in PROMOTED for args, kwargs in op.generate_args_kwargs(value)), device
        )


class TestShapeFuncs(Compares):
    @ops(shape_funcs, allowed_dtypes=DTYPES)
    def test_reference_inputs(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        samples = op.reference_inputs("cpu", dtype)
        self.compare(((op.op, sample.input, sample.args, sample.kwargs) for sample in islice(samples, SAMPLES)), device)


class TestPythonRefs(Compares):
    @ops([op for op in python_ref_db if "empty" not in op.name], dtypes=OpDTypes.any_one)
    def test_reference(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """``torch._refs``, made of simpler ops, on the reference inputs. Calls without a tensor give a tensor on the CPU on any device."""
        function = with_host_arguments(op) if op.name.removeprefix("_refs.") in HOST_ARGUMENTS else op.op

        def calls() -> Iterator[Call]:
            samples: Iterator[SampleInput] = op.reference_inputs("cpu", dtype)
            for sample in islice(samples, SAMPLES):
                if tensors((sample.input, sample.args, sample.kwargs)):
                    yield function, sample.input, sample.args, sample.kwargs

        self.compare(calls(), device)


def with_host_arguments(op: OpInfo) -> Callable[..., Any]:
    """``op`` with all tensors but the first on the CPU, where it wants them on every device."""
    return lambda value, *args, **kwargs: op.op(value, *host(args), **host(kwargs))


CLASSES = [TestUnaryUfuncs, TestBinaryUfuncs, TestReductions, TestShapeFuncs, TestPythonRefs]
