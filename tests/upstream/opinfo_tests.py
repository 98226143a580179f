"""What PyTorch's test_ops.py asks of every op on its values, forms and errors, under the names that the table's decorators refer to."""

import warnings

import torch
from torch.testing._internal.common_device_type import OpDTypes, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, noncontiguous_like, set_default_dtype

from .op_samples import STRIDED_OUT_BREAKS_THE_CPU, VALUES_ARE_UNDEFINED, call, first, host, processed, settle, tensors, values_defined

SAMPLES = 3  # an op and dtype; tests/opinfo runs all samples of six dtypes
# tests/opinfo compares the others with the CPU, over all samples.
OTHER_DTYPES = (
    *(torch.float16, torch.complex128, torch.complex32, torch.uint8, torch.int8, torch.int16, torch.int32),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
)

with_out = [op for op in op_db if op.supports_out]
with_errors = [op for op in op_db if op.error_inputs_func is not None]
with_variants = [op for op in op_db if any(form is not None for form in (op.method_variant, op.inplace_variant, op.operator_variant))]


class TestCommon(TestCase):
    exact_dtype = True

    @ops(op_db, allowed_dtypes=OTHER_DTYPES)
    def test_compare_cpu(self, device, dtype, op):
        """The device gives what the CPU gives."""
        values = values_defined(op)
        for sample in first(op.sample_inputs(device, dtype), SAMPLES):
            on_cpu = sample.transform(lambda x: x.cpu() if isinstance(x, torch.Tensor) else "cpu" if x == device else x)
            actual, expected = call(op, sample), call(op, on_cpu)
            if values:
                # Two devices may round differently where ulps of a narrow type are large.
                limits = {"atol": 1e-3, "rtol": 1e-3} if dtype is torch.float16 else {}
                self.assertEqual(host(actual), expected, **limits)
            else:
                self.assertEqual([(t.shape, t.dtype) for t in tensors(actual)], [(t.shape, t.dtype) for t in tensors(expected)])

    @ops(op_db, allowed_dtypes=(torch.float32, torch.int64, torch.complex64))
    def test_noncontiguous_samples(self, device, dtype, op):
        """Arguments with gaps between their elements change neither the result nor the gradients."""
        if not values_defined(op):
            self.skipTest("values are random or undefined")
        gradients = op.supports_autograd and dtype in op.supported_backward_dtypes(device)
        for sample in first(op.sample_inputs(device, dtype, requires_grad=gradients), SAMPLES):
            spread = sample.noncontiguous()
            expected, actual = call(op, sample), call(op, spread)
            self.assertEqual(host(actual), host(expected))
            if gradients and processed(sample, expected):
                self.assertEqual(gradients_of(spread, actual), gradients_of(sample, expected))

    @ops(with_out, dtypes=OpDTypes.any_one)
    def test_out(self, device, dtype, op):
        """``out=`` of the right size is written where it lies, with any strides; a wrong dtype or device is refused."""
        for sample in first(op.sample_inputs(device, dtype), SAMPLES):
            expected = call(op, sample)
            if not tensors(expected) or len(tensors(expected)) != len(expected if isinstance(expected, tuple) else [expected]):
                self.skipTest("not a tensor or tuple of tensors")
            forms = [torch.empty_like]
            if op.name not in STRIDED_OUT_BREAKS_THE_CPU or self.device_type != "cpu":
                forms.append(lambda t: noncontiguous_like(t) if t.numel() else torch.empty_like(t))
            for form in forms:
                outs = like(expected, form)
                before = places(outs)
                result = call(op_with_out(op, outs), sample)
                if values_defined(op):
                    self.assertEqual(host(outs), like(host(expected), lambda t: t))
                self.assertEqual(places(outs), before)
                self.assertEqual([t.data_ptr() for t in tensors(result)], [t.data_ptr() for t in tensors(outs)])
            self._check_refusals(op, sample, expected, device)

    def _check_refusals(self, op, sample, expected, device):
        if op.name in VALUES_ARE_UNDEFINED:
            return
        if torch.device(device).type != "cpu":
            elsewhere = like(expected, lambda t: torch.empty_like(t, device="cpu"))
            with self.assertRaises(RuntimeError, msg="out= on the CPU"):
                call(op_with_out(op, elsewhere), sample)
                settle()
        results = tensors(expected)
        if all(t.is_floating_point() or t.is_complex() for t in results):
            integers = like(expected, lambda t: torch.empty_like(t, dtype=torch.long))
            with self.assertRaises(RuntimeError, msg="out= of integers"):
                call(op_with_out(op, integers), sample)
                settle()

    @ops(with_out, dtypes=OpDTypes.any_one)
    def test_out_warning(self, device, dtype, op):
        """``out=`` of a wrong size is resized, with a warning unless it was empty."""
        for sample in first(op.sample_inputs(device, dtype), 2):
            expected = call(op, sample)
            if not tensors(expected) or len(tensors(expected)) != len(expected if isinstance(expected, tuple) else [expected]):
                self.skipTest("not a tensor or tuple of tensors")
            empty = like(expected, lambda t: torch.empty(0, dtype=t.dtype, device=t.device))
            self.assertEqual(self._resize_warnings(op, sample, empty), 0)
            self._check_resized(op, empty, expected)
            if any(t.numel() == 0 for t in tensors(expected)):
                continue
            for _ in ("miss", "hit"):
                wrong = like(
                    expected, lambda t: torch.zeros((*t.shape[:-1], t.shape[-1] + 1) if t.dim() else (2,), dtype=t.dtype, device=t.device)
                )
                self.assertEqual(self._resize_warnings(op, sample, wrong) > 0, True, msg="a warning that out= was resized")
                self._check_resized(op, wrong, expected)

    def _resize_warnings(self, op, sample, outs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(op_with_out(op, outs), sample)
            settle()
        return sum("An output with one or more elements" in str(warning.message) for warning in caught)

    def _check_resized(self, op, outs, expected):
        self.assertEqual([t.shape for t in tensors(outs)], [t.shape for t in tensors(expected)])
        if values_defined(op):
            self.assertEqual(host(outs), like(host(expected), lambda t: t))

    @ops(with_errors, dtypes=OpDTypes.none)
    def test_errors(self, device, op):
        """Wrong inputs raise the exception that the table names, with its message."""
        for case in op.error_inputs(device):
            with self.assertRaisesRegex(case.error_type, case.error_regex):
                self.assertIsNot(call(op, case.sample_input), NotImplemented)
                settle()

    @ops(op_db, dtypes=OpDTypes.none)
    def test_dtypes(self, device, op):
        """The dtypes that work, forward and backward, are those that the table names, no fewer and no more."""
        every = (
            torch.float16,
            torch.complex128,
            torch.uint8,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.float32,
            torch.float64,
            torch.bfloat16,
            torch.complex64,
            torch.int64,
            torch.bool,
        )
        works, differentiates, messages = set(), set(), {}
        for dtype in every:
            try:
                self._try(op, device, dtype, False)
                works.add(dtype)
            except Exception as error:
                messages[dtype] = error
                continue
            if op.supports_autograd and (dtype.is_floating_point or dtype.is_complex):
                try:
                    if self._try(op, device, dtype, True):
                        differentiates.add(dtype)
                except Exception as error:
                    messages[dtype] = error
        forward = op.supported_dtypes(device) & set(every)
        backward = op.supported_backward_dtypes(device) & set(every) if op.supports_autograd else set()
        self.assertEqual((works - forward, differentiates - backward), (set(), set()), msg="works, but the table does not say so")
        self.assertEqual((forward - works, backward - differentiates), (set(), set()), msg=f"does not work: {messages}")

    def _try(self, op, device, dtype, gradients):
        """Raises what the first sample raises; whether it has gradients."""
        found = False
        for sample in first(op.sample_inputs(device, dtype, requires_grad=gradients), 1):
            result = call(op, sample)
            outputs = processed(sample, result) if gradients else []
            if outputs:
                found = True
                torch.autograd.backward(outputs, [torch.ones_like(out) for out in outputs])
            settle()
        return found

    @ops(with_variants, allowed_dtypes=(torch.float32, torch.int64, torch.complex64, torch.bool))
    def test_variant_consistency_eager(self, device, dtype, op):
        """Method, operator and in-place forms give what the function gives, with the same gradients."""
        if not values_defined(op):
            self.skipTest("values are random or undefined")
        gradients = op.supports_autograd and dtype in op.supported_backward_dtypes(device)
        for sample in first(op.sample_inputs(device, dtype, requires_grad=gradients), SAMPLES):
            if not isinstance(sample.input, torch.Tensor):
                continue
            expected = call(op, sample)
            wanted = gradients_of(sample, expected) if gradients and processed(sample, expected) else None
            for variant in (op.method_variant, op.operator_variant if not sample.kwargs else None, *(alias.op for alias in op.aliases)):
                if variant is not None:
                    actual = call(variant, sample)
                    self.assertEqual(host(actual), host(expected))
                    if wanted is not None:
                        self.assertEqual(gradients_of(sample, actual), wanted)
            if (
                sample.broadcasts_input
                or not isinstance(expected, torch.Tensor)
                or expected.dtype != dtype
                or expected.shape != sample.input.shape
            ):
                continue
            for variant in (op.inplace_variant, op.inplace_operator_variant if not sample.kwargs else None):
                if variant is None:
                    continue
                value = sample.input.clone()
                version = value._version
                actual = call(variant, sample, value)
                self.assertIs(actual, value)
                self.assertGreater(value._version, version)
                self.assertEqual(host(actual), host(expected))
                if wanted is not None and op.supports_inplace_autograd:
                    self.assertEqual(gradients_of(sample, actual), wanted)

    @ops(op_db, dtypes=OpDTypes.any_one)
    def test_multiple_devices(self, device, dtype, op):
        """On the second device, whatever the current one is, results lie there."""
        several = torch.device(device).type != "cpu" and torch.accelerator.device_count() > 1
        other = f"{torch.device(device).type}:1" if several else device
        for sample in first(op.sample_inputs(other, dtype), 1):
            result = call(op, sample)
            if isinstance(sample.input, torch.Tensor):
                self.assertEqual({t.device for t in tensors(result)} <= {torch.device(other)}, True)

    @ops([op for op in op_db if op.promotes_int_to_float], allowed_dtypes=(torch.bool, torch.int8, torch.int64))
    def test_promotes_int_to_float(self, device, dtype, op):
        for default in (torch.float32, torch.float64):
            with set_default_dtype(default):
                for sample in first(op.sample_inputs(device, dtype), 2):
                    self.assertEqual(tensors(call(op, sample))[0].dtype, default)
                # The default dtype belongs to the process, and a kernel reads it when it runs: let those in the queue finish.
                settle()


def gradients_of(sample, result):
    """Of the sample's inputs that require them, on the CPU."""
    leaves = [t for t in tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
    outputs = processed(sample, result)
    return host(torch.autograd.grad(outputs, leaves, [torch.ones_like(out) for out in outputs], allow_unused=True))


def like(expected, make):
    """``expected`` with each tensor replaced, as an ``out=`` argument."""
    made = tuple(make(t) for t in tensors(expected))
    return made if isinstance(expected, tuple) else made[0]


def places(outs):
    return [(t.data_ptr() if t.numel() else 0, t.stride(), t.storage_offset()) for t in tensors(outs)]


def op_with_out(op, outs):
    return lambda *args, **kwargs: op(*args, **kwargs, out=outs)


CLASSES = [TestCommon]
