"""PyTorch's test_ops_gradients.py and test_ops_fwd_gradients.py: formulas against finite differences, in double precision."""

import torch
from torch.testing._internal.common_device_type import ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, gradcheck, gradgradcheck
from torch.utils._pytree import tree_leaves

from .op_samples import first, settle

SAMPLES = 2  # an op and dtype: a finite difference costs two runs for each of the inputs' directions
DOUBLE = (torch.float64, torch.complex128)

backward_ops = [op for op in op_db if op.supports_autograd]
second_ops = [op for op in op_db if op.supports_gradgrad]
forward_ops = [op for op in op_db if op.supports_forward_ad]


class GradientCase(TestCase):
    def cases(self, device, dtype, op, variant):
        """(function, inputs, kwargs for gradcheck) of the first samples with real work."""
        for sample in first(op.sample_inputs(device, dtype, requires_grad=True, small_inputs_only=True), SAMPLES):
            if variant is not op.get_op() and (sample.broadcasts_input or not self._fits_in_place(op, sample)):
                continue
            leaves = (sample.input, *sample.args)
            flat, rebuild = flatten(leaves)
            names = [name for name, value in sample.kwargs.items() if isinstance(value, torch.Tensor) and value.requires_grad]
            inputs = (*flat, *(sample.kwargs[name] for name in names))
            if not inputs:
                continue

            def function(*given, sample=sample, rebuild=rebuild, names=names):
                count = len(given) - len(names)
                value, *args = rebuild(given[:count])
                kwargs = {**sample.kwargs, **dict(zip(names, given[count:], strict=True))}
                if variant is not op.get_op():
                    value = value.clone()
                return sample.output_process_fn_grad(op.gradcheck_wrapper(variant, value, *args, **kwargs))

            yield function, inputs

    @staticmethod
    def _fits_in_place(op, sample):
        result = op(sample.input, *sample.args, **sample.kwargs)
        return isinstance(result, torch.Tensor) and (result.shape, result.dtype) == (sample.input.shape, sample.input.dtype)

    def limits(self, op):
        return {"nondet_tol": op.gradcheck_nondet_tol, "fast_mode": op.gradcheck_fast_mode}

    def check(self, device, dtype, op, variant, second=False, **extra):
        if variant is None:
            self.skipTest("no such variant")
        for function, inputs in self.cases(device, dtype, op, variant):
            check = gradgradcheck if second else gradcheck
            self.assertTrue(check(function, inputs, **self.limits(op), **extra))
            settle()


def flatten(leaves):
    """The tensors that require gradients in nested lists, and a function that puts others in their places."""
    flat = [leaf for leaf in tree_leaves(list(leaves)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]

    def rebuild(given):
        others = iter(given)

        def place(value):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                return next(others)
            return type(value)(map(place, value)) if type(value) in (list, tuple) else value

        return [place(value) for value in leaves]

    return flat, rebuild


class TestBwdGradients(GradientCase):
    @ops(backward_ops, allowed_dtypes=DOUBLE)
    def test_fn_grad(self, device, dtype, op):
        if dtype not in op.supported_backward_dtypes(torch.device(device).type):
            self.skipTest("no backward in this dtype")
        self.check(device, dtype, op, op.get_op(), check_batched_grad=op.check_batched_grad)

    @ops(second_ops, allowed_dtypes=DOUBLE)
    def test_fn_gradgrad(self, device, dtype, op):
        if dtype not in op.supported_backward_dtypes(torch.device(device).type):
            self.skipTest("no backward in this dtype")
        self.check(device, dtype, op, op.get_op(), second=True, gen_non_contig_grad_outputs=True, check_batched_grad=False)

    @ops([op for op in backward_ops if op.inplace_variant is not None and op.supports_inplace_autograd], allowed_dtypes=DOUBLE)
    def test_inplace_grad(self, device, dtype, op):
        if dtype not in op.supported_backward_dtypes(torch.device(device).type):
            self.skipTest("no backward in this dtype")
        self.check(device, dtype, op, op.get_inplace(), check_batched_grad=False)

    @ops([op for op in second_ops if op.inplace_variant is not None and op.supports_inplace_autograd], allowed_dtypes=(torch.float64,))
    def test_inplace_gradgrad(self, device, dtype, op):
        if dtype not in op.supported_backward_dtypes(torch.device(device).type):
            self.skipTest("no backward in this dtype")
        self.check(device, dtype, op, op.get_inplace(), second=True, check_batched_grad=False)


class TestFwdGradients(GradientCase):
    @ops(forward_ops, allowed_dtypes=DOUBLE)
    def test_forward_mode_AD(self, device, dtype, op):
        self.forward(device, dtype, op, op.get_op(), check_batched_forward_grad=op.check_batched_forward_grad)

    @ops([op for op in forward_ops if op.inplace_variant is not None and op.supports_inplace_autograd], allowed_dtypes=DOUBLE)
    def test_inplace_forward_mode_AD(self, device, dtype, op):
        self.forward(device, dtype, op, op.get_inplace(), check_batched_forward_grad=op.check_inplace_batched_forward_grad)

    def forward(self, device, dtype, op, variant, **extra):
        if dtype not in op.supported_backward_dtypes(torch.device(device).type):
            self.skipTest("no derivative in this dtype")
        self.check(
            device,
            dtype,
            op,
            variant,
            check_forward_ad=True,
            check_backward_ad=False,
            check_undefined_grad=False,
            check_batched_grad=False,
            **extra,
        )

    @ops([op for op in op_db if op.supports_fwgrad_bwgrad], allowed_dtypes=(torch.float64,))
    def test_fn_fwgrad_bwgrad(self, device, dtype, op):
        if dtype not in op.supported_backward_dtypes(torch.device(device).type):
            self.skipTest("no derivative in this dtype")
        self.check(
            device,
            dtype,
            op,
            op.get_op(),
            second=True,
            check_fwd_over_rev=True,
            check_rev_over_rev=False,
            check_undefined_grad=False,
            check_batched_grad=False,
        )


CLASSES = [TestBwdGradients, TestFwdGradients]
