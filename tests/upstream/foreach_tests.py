"""The foreach database: lists of tensors on a device, against the CPU's foreach op and against the op on each tensor."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import ops
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
)
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import ForeachFuncInfo, SampleInput

from tests.opinfo.forms import cotangents
from tests.opinfo.samples import Placement

from .reference import assert_matches, seeded

FOREACH = [*foreach_unary_op_db, *foreach_binary_op_db, *foreach_pointwise_op_db, *foreach_reduce_op_db, *foreach_other_op_db]
DIFFERENTIABLE = [op for op in FOREACH if op.supports_autograd]
LENGTHS = [6]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
# The databases leave lists with empty tensors between others out for the device "cpu", by its name.
ANY_CPU = "cpu:0"


def samples_of(op: ForeachFuncInfo, dtype: torch.dtype, requires_grad: bool = False, **kwargs: Any) -> Iterator[SampleInput]:
    with seeded("cpu"):
        yield from op.sample_inputs(
            ANY_CPU, dtype, requires_grad=requires_grad, num_input_tensors=LENGTHS, allow_higher_dtype_scalars=True, **kwargs
        )
        if not requires_grad:
            yield from op.sample_zero_size_inputs(ANY_CPU, dtype)


def changing_form(op: ForeachFuncInfo) -> Any:
    """In place where the op has it."""
    return op.method_variant if op.inplace_variant is None else op.inplace_variant


class TestForeach(TestCase):
    def run_on(self, function: Any, sample: SampleInput, device: str) -> tuple[Any, Any]:
        """The result, and the lists given (an in-place op changes them)."""
        place = Placement(device)
        value, args, kwargs = place(sample.input), place(sample.args), place(sample.kwargs)
        with torch.no_grad():
            result = function(value, *args, **kwargs)
        return result, (value, args)

    def compare(self, function: Any, samples: Iterator[SampleInput], device: str) -> None:
        compared = 0
        for sample in samples:
            try:
                expected = self.run_on(function, sample, "cpu")
            except (RuntimeError, TypeError, IndexError):
                continue
            compared += 1
            for _ in range(2):  # a miss of the cache, then a hit
                assert_matches(self, self.run_on(function, sample, device), expected, device)
        if not compared:
            self.skipTest("the CPU refuses all samples")

    @ops([op for op in FOREACH if op.method_variant is not None], allowed_dtypes=DTYPES)
    def test_out_of_place(self, device: str, dtype: torch.dtype, op: ForeachFuncInfo) -> None:
        self.compare(op.method_variant, samples_of(op, dtype), device)

    @ops([op for op in FOREACH if op.inplace_variant is not None], allowed_dtypes=DTYPES)
    def test_in_place(self, device: str, dtype: torch.dtype, op: ForeachFuncInfo) -> None:
        self.compare(op.inplace_variant, samples_of(op, dtype), device)

    @ops(FOREACH, allowed_dtypes=DTYPES)
    def test_strided(self, device: str, dtype: torch.dtype, op: ForeachFuncInfo) -> None:
        """Tensors with gaps take the slow path."""
        self.compare(changing_form(op), samples_of(op, dtype, noncontiguous=True), device)

    @ops(
        [op for op in FOREACH if op.ref is not None and op.method_variant is not None],
        allowed_dtypes=(torch.float32, torch.int64, torch.complex64),
    )
    def test_each_tensor(self, device: str, dtype: torch.dtype, op: ForeachFuncInfo) -> None:
        """The list's result is that of the op on each tensor, both on the device."""
        compared, reference = 0, cast(Any, op.ref)
        for sample in samples_of(op, dtype):
            ref_args = [arg if isinstance(arg, list) else [arg] * len(sample.input) for arg in getattr(sample, "ref_args", sample.args)]

            def each(where: str, sample: SampleInput = sample, ref_args: list[Any] = ref_args) -> list[Any]:
                place = Placement(where)
                columns = [place(sample.input), *(place(arg) for arg in ref_args)]
                return [reference(*row, **place(sample.kwargs)) for row in zip(*columns, strict=True)]

            try:
                separate = each("cpu")
                together = self.run_on(op.method_variant, sample, "cpu")[0]
                self.assertEqual(together, separate)
            except Exception:  # on the CPU the two differ in themselves
                continue
            compared += 1
            self.assertEqual(self.run_on(op.method_variant, sample, device)[0], each(device))
        if not compared:
            self.skipTest("on the CPU the list form and the op on each tensor differ in all samples")

    @ops(DIFFERENTIABLE, allowed_dtypes=(torch.float64, torch.complex128))
    def test_gradients(self, device: str, dtype: torch.dtype, op: ForeachFuncInfo) -> None:
        def gradients(sample: SampleInput, where: str) -> list[torch.Tensor | None]:
            place = Placement(where)
            result = op.op(place(sample.input), *place(sample.args), **place(sample.kwargs))
            outputs = [out for out in result if out.requires_grad]
            leaves = [leaf for leaf in place.tensors if leaf.requires_grad]
            return list(torch.autograd.grad(outputs, leaves, cotangents(outputs), allow_unused=True))

        compared = 0
        for sample in samples_of(op, dtype, requires_grad=True):
            try:
                expected = gradients(sample, "cpu")
            except (RuntimeError, TypeError, IndexError):
                continue
            compared += 1
            assert_matches(self, gradients(sample, device), expected, device)
        if not compared:
            self.skipTest("the CPU refuses all samples")

    @ops(FOREACH, allowed_dtypes=(torch.float32,))
    def test_mixed_lists(self, device: str, dtype: torch.dtype, op: ForeachFuncInfo) -> None:
        """Dtypes, strides and sizes that differ within a list; the same tensor twice; 0-dim tensors."""

        def mixed(sample: SampleInput) -> Iterator[SampleInput]:
            def change(value: Any, number: int) -> Any:
                if not isinstance(value, list) or not all(isinstance(item, torch.Tensor) for item in value):
                    return value
                dtypes = (torch.float32, torch.bfloat16, torch.float64)
                forms = (
                    [item.to(dtypes[index % 3]) for index, item in enumerate(value)],
                    [item.t() if index % 2 else item for index, item in enumerate(value)],
                    [value[0]] * len(value),
                    [make_tensor((), device="cpu", dtype=dtype) for _ in value],
                )
                return forms[number]

            for number in range(4):
                changed = SampleInput(
                    change(sample.input, number), args=tuple(change(arg, number) for arg in sample.args), kwargs=sample.kwargs
                )
                if len({id(item) for item in changed.input}) == len(changed.input) or op.inplace_variant is None:
                    yield changed

        self.compare(changing_form(op), (form for sample in samples_of(op, dtype) for form in mixed(sample)), device)


CLASSES = [TestForeach]
