"""Lazy conjugation and negation, composite compliance and copy-on-write: what test_ops.py asks of tensors that are not plain."""

import torch
from torch.testing._internal import composite_compliance
from torch.testing._internal.common_device_type import OpDTypes, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase
from torch.utils._pytree import tree_map_only

from .op_samples import call, first, host, processed, settle, tensors, values_defined

SAMPLES = 2  # each is run in all permutations of wrapped and plain arguments


def lazily_conjugated(tensor):
    return torch.conj(torch.conj_physical(tensor))


def lazily_negated(tensor):
    return torch._neg_view(torch.neg(tensor))


class TestMathBits(TestCase):
    """An input whose conjugate or negative bit is set gives what its plain copy gives."""

    def compare(self, device, dtype, op, lazy):
        if not values_defined(op):
            self.skipTest("values are random or undefined")
        gradients = op.supports_autograd and dtype in op.supported_backward_dtypes(torch.device(device).type)
        for sample in first(op.sample_inputs(device, dtype, requires_grad=gradients), 3):
            if not isinstance(sample.input, torch.Tensor) or sample.input.layout is not torch.strided:
                continue
            plain = sample.input.detach().requires_grad_(sample.input.requires_grad)
            marked = lazy(sample.input.detach()).requires_grad_(sample.input.requires_grad)
            expected, actual = call(op, sample, plain), call(op, sample, marked)
            self.assertEqual(host(actual), host(expected))
            if op.inplace_variant is not None and not sample.broadcasts_input and expected.dtype == dtype:
                with torch.no_grad():
                    self.assertEqual(host(call(op.inplace_variant, sample, lazy(plain.clone()))), host(expected))
            outputs, others = processed(sample, expected), processed(sample, actual)
            if plain.requires_grad and outputs:
                ones = [torch.ones_like(out) for out in outputs]
                wanted = torch.autograd.grad(outputs, plain, ones, allow_unused=True)
                self.assertEqual(host(torch.autograd.grad(others, marked, ones, allow_unused=True)), host(wanted))

    @ops(op_db, allowed_dtypes=(torch.complex64,))
    def test_conj_view(self, device, dtype, op):
        if not op.test_conjugated_samples:
            self.skipTest("the table asks for no conjugated samples")
        self.compare(device, dtype, op, lazily_conjugated)

    @ops(op_db, allowed_dtypes=(torch.float64,))
    def test_neg_view(self, device, dtype, op):
        if not op.test_neg_view:
            self.skipTest("the table asks for no negated samples")
        self.compare(device, dtype, op, lazily_negated)

    @ops(op_db, allowed_dtypes=(torch.complex128,))
    def test_neg_conj_view(self, device, dtype, op):
        if not op.test_neg_view or not op.test_conjugated_samples:
            self.skipTest("the table asks for no such samples")
        self.compare(device, dtype, op, lambda tensor: lazily_negated(lazily_conjugated(tensor)))


class TestCompositeCompliance(TestCase):
    """No op looks behind a tensor subclass; no op writes to a lazy copy's source."""

    @ops(op_db, allowed_dtypes=(torch.float32,))
    def test_operator(self, device, dtype, op):
        for sample in first(op.sample_inputs(device, dtype), SAMPLES):
            args = [sample.input, *sample.args]
            composite_compliance.check_with_mode(op, args, sample.kwargs, self.assertEqual)
            composite_compliance.check_all_permutations(op, args, sample.kwargs, self.assertEqual)

    @ops([op for op in op_db if op.supports_autograd], allowed_dtypes=(torch.float32,))
    def test_backward(self, device, dtype, op):
        for sample in first(op.sample_inputs(device, dtype, requires_grad=True), SAMPLES):
            composite_compliance.check_backward_formula(
                op.get_op(),
                [sample.input, *sample.args],
                sample.kwargs,
                sample.output_process_fn_grad,
                op.gradcheck_wrapper,
                self.assertEqual,
            )

    @ops([op for op in op_db if op.supports_forward_ad], allowed_dtypes=(torch.float32,))
    def test_forward_ad(self, device, dtype, op):
        for sample in first(op.sample_inputs(device, dtype, requires_grad=True), SAMPLES):
            composite_compliance.check_forward_ad_formula(
                op.get_op(), [sample.input, *sample.args], sample.kwargs, op.gradcheck_wrapper, self.assertEqual
            )

    @ops(op_db, dtypes=OpDTypes.any_one)
    def test_cow_input(self, device, dtype, op):
        """A lazy clone of the input gives the same result, and its source keeps its values."""
        if not values_defined(op):
            self.skipTest("values are random or undefined")
        for sample in first(op.sample_inputs(device, dtype), SAMPLES):
            if any(t.layout is not torch.strided for t in tensors((sample.input, sample.args, sample.kwargs))):
                continue
            expected, before = host(call(op, sample)), host(sample.input)
            lazy = sample.transform(lambda x: torch._lazy_clone(x) if isinstance(x, torch.Tensor) else x)
            result = call(op, lazy)
            settle()
            self.assertEqual(host(result), expected)
            self.assertEqual(host(sample.input), before)
            if op.inplace_variant is not None and not sample.broadcasts_input and isinstance(sample.input, torch.Tensor):
                clone = torch._lazy_clone(sample.input)
                call(op.inplace_variant, sample, clone)
                settle()
                self.assertEqual(host(sample.input), before)


class TestTags(TestCase):
    @ops(op_db, dtypes=OpDTypes.any_one)
    def test_inputs_stay(self, device, dtype, op):
        """The functional form writes to no input."""
        for sample in first(op.sample_inputs(device, dtype), SAMPLES):
            inputs = (sample.input, sample.args, sample.kwargs)
            before, versions = host(tree_map_only(torch.Tensor, torch.clone, inputs)), [t._version for t in tensors(inputs)]
            call(op, sample)
            settle()
            self.assertEqual(host(inputs), before)
            self.assertEqual([t._version for t in tensors(inputs)], versions)


CLASSES = [TestMathBits, TestCompositeCompliance, TestTags]
