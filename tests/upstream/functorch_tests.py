"""torch.func on the op table: vmap against a loop, vjp and jvp against autograd."""

import torch
from torch.testing._internal.common_device_type import ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase
from torch.utils._pytree import tree_flatten, tree_unflatten

from .op_samples import call, drawn_on_cpu, first, host, processed, tensors, values_defined

SAMPLES = 3
BATCH = 2


class TestVmapOperatorsOpInfo(TestCase):
    """``vmap(op)`` gives what a loop over the batch gives."""

    def batched_against_loop(self, device, dtype, op, variant):
        if not values_defined(op):
            self.skipTest("values are random or undefined")
        for sample in first(op.sample_inputs(device, dtype), SAMPLES):
            flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
            places = [index for index, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
            if not places or (variant is not op.get_op() and sample.broadcasts_input):
                continue
            # The first tensor alone, all of them, and all of them with the batch in the last dimension.
            choices = [(places[:1], 0), (places, 0), (places, -1)]
            for chosen, dim in choices[:1] if variant is not op.get_op() else choices:
                self.compare(flat, spec, chosen, dim, variant, inplace=variant is not op.get_op())

    def compare(self, flat, spec, chosen, dim, variant, inplace):
        stacks = [torch.stack([flat[index]] * BATCH, dim) for index in chosen]

        def function(*given):
            filled = list(flat)
            for index, value in zip(chosen, given, strict=True):
                filled[index] = value
            value, args, kwargs = tree_unflatten(filled, spec)
            return tensors(variant(value.clone() if inplace else value, *args, **kwargs))

        loop = [function(*(stack.select(dim, index) for stack in stacks)) for index in range(BATCH)]
        expected = [torch.stack(results) for results in zip(*loop, strict=True)]
        self.assertEqual(host(torch.vmap(function, in_dims=dim)(*stacks)), host(expected))

    @ops(op_db, allowed_dtypes=(torch.float32, torch.int64))
    def test_vmap_exhaustive(self, device, dtype, op):
        self.batched_against_loop(device, dtype, op, op.get_op())

    @ops([op for op in op_db if op.inplace_variant is not None], allowed_dtypes=(torch.float32,))
    def test_vmap_inplace(self, device, dtype, op):
        self.batched_against_loop(device, dtype, op, op.get_inplace())


class TestOperators(TestCase):
    """vjp, jvp and vmap of vjp against plain autograd."""

    def functions(self, device, dtype, op):
        """(function of the differentiable tensors, these tensors)."""
        if not values_defined(op):
            self.skipTest("values are random or undefined")
        for sample in first(drawn_on_cpu(op, device, dtype, requires_grad=True), SAMPLES):
            flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
            places = [index for index, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            if not places or not processed(sample, call(op, sample)):
                continue

            def function(*given, sample=sample, flat=flat, spec=spec, places=places):
                filled = list(flat)
                for index, tensor in zip(places, given, strict=True):
                    filled[index] = tensor
                value, args, kwargs = tree_unflatten(filled, spec)
                results = tensors(sample.output_process_fn_grad(op(value, *args, **kwargs)))
                return tuple(out for out in results if out.is_floating_point() or out.is_complex())

            yield function, tuple(flat[index].detach() for index in places)

    @ops([op for op in op_db if op.supports_autograd], allowed_dtypes=(torch.float32,))
    def test_vjp(self, device, dtype, op):
        for function, primals in self.functions(device, dtype, op):
            outputs, pullback = torch.func.vjp(function, *primals)
            cotangents = tuple(torch.ones_like(out) for out in outputs)
            leaves = [primal.clone().requires_grad_() for primal in primals]
            results = function(*leaves)
            pairs = [(out, ones) for out, ones in zip(results, cotangents, strict=True) if out.requires_grad]
            wanted = torch.autograd.grad([o for o, _ in pairs], leaves, [c for _, c in pairs], allow_unused=True, materialize_grads=True)
            self.assertEqual(host(pullback(cotangents)), host(wanted))

    @ops([op for op in op_db if op.supports_autograd], allowed_dtypes=(torch.float32,))
    def test_vmapvjp(self, device, dtype, op):
        for function, primals in self.functions(device, dtype, op):

            def gradient(*given, function=function):
                outputs, pullback = torch.func.vjp(function, *given)
                return pullback(tuple(torch.ones_like(out) for out in outputs))

            wanted = gradient(*primals)
            batched = torch.vmap(gradient)(*(torch.stack([primal] * BATCH) for primal in primals))
            self.assertEqual(host(batched), host(tuple(torch.stack([grad] * BATCH) for grad in wanted)))

    @ops([op for op in op_db if op.supports_forward_ad], allowed_dtypes=(torch.float32,))
    def test_jvp(self, device, dtype, op):
        """jvp and vjp are each other's transpose."""
        for function, primals in self.functions(device, dtype, op):
            tangents = tuple(
                torch.linspace(-1, 1, max(p.numel(), 1), device=p.device, dtype=p.dtype)[: p.numel()].view(p.shape) for p in primals
            )
            outputs, pushed = torch.func.jvp(function, primals, tangents)
            _, pullback = torch.func.vjp(function, *primals)
            cotangents = tuple(torch.ones_like(out) for out in outputs)
            forward = sum(host(out.sum()).real for out in pushed)
            reverse = sum(host((g * t).sum()) for g, t in zip(pullback(cotangents), tangents, strict=True))
            self.assertEqual(forward, reverse, atol=1e-3, rtol=1e-3)


CLASSES = [TestVmapOperatorsOpInfo, TestOperators]
