"""Meta and fake tensors: sizes, strides and dtypes that PyTorch foretells are those that the device gives."""

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch._subclasses.fake_utils import CrossRefFakeMode
from torch.testing._internal.common_device_type import OpDTypes, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase
from torch.utils._pytree import tree_leaves

from .op_samples import call, drawn_on_cpu, first, processed, tensors

SAMPLES = 4
FROM_DATA = (DataDependentOutputException, DynamicOutputShapeException)  # the sizes lie in the values, so nothing can be foretold


def described(tree):
    """What must agree. A stride of a dimension of size one or of an empty tensor says nothing."""
    found = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            strides = (
                [s for s, n in zip(leaf.stride(), leaf.shape, strict=True) if n > 1]
                if leaf.layout is torch.strided and leaf.numel()
                else []
            )
            found.append((tuple(leaf.shape), strides, leaf.dtype, leaf.layout, leaf.is_conj(), leaf.is_neg()))
        else:
            found.append(type(leaf))
    return found


class TestMeta(TestCase):
    def compare(self, op, sample, function, value=None):
        def to_meta(x):
            return x.to("meta") if isinstance(x, torch.Tensor) else torch.device("meta") if isinstance(x, torch.device) else x

        strided = sample.transform(
            lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if is_plain(x) else to_meta(x)
        )
        foretold = call(function, strided)
        self.assertEqual(described(call(function, sample, value)), described(foretold))

    @ops(op_db, allowed_dtypes=(torch.float32, torch.int64, torch.complex64))
    def test_meta_outplace(self, device, dtype, op):
        for sample in first(drawn_on_cpu(op, device, dtype), SAMPLES):
            if "device" in sample.kwargs:
                sample.kwargs.pop("device")
                continue
            self.compare(op, sample, op)

    @ops([op for op in op_db if op.inplace_variant is not None], allowed_dtypes=(torch.float32, torch.int64))
    def test_meta_inplace(self, device, dtype, op):
        for sample in first(drawn_on_cpu(op, device, dtype), SAMPLES):
            if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
                continue
            self.compare(op, sample, op.inplace_variant, sample.input.clone(memory_format=torch.preserve_format))


def is_plain(value):
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_conj() and not value.is_neg()


class TestFakeTensor(TestCase):
    @ops(op_db, dtypes=OpDTypes.any_one)
    def test_fake(self, device, dtype, op):
        self.fake(device, dtype, op)

    @ops(op_db, dtypes=OpDTypes.any_one)
    def test_fake_autocast(self, device, dtype, op):
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            self.fake(device, dtype, op)

    def fake(self, device, dtype, op):
        """A fake tensor of the device foretells the real one: metadata, and the device."""
        for sample in first(drawn_on_cpu(op, device, dtype), SAMPLES):
            mode = FakeTensorMode()
            real = call(op, sample)
            fake_sample = sample.transform(lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x)  # noqa: B023
            try:
                with mode:
                    foretold = call(op, fake_sample)
            except FROM_DATA:
                continue
            self.assertEqual(described(real), described(foretold))
            self.assertEqual([t.device for t in tensors(real)], [t.device for t in tensors(foretold)])

    @ops([op for op in op_db if op.supports_autograd], allowed_dtypes=(torch.float32,))
    def test_fake_crossref_backward_no_amp(self, device, dtype, op):
        self.crossref(device, dtype, op)

    @ops([op for op in op_db if op.supports_autograd], allowed_dtypes=(torch.float32,))
    def test_fake_crossref_backward_amp(self, device, dtype, op):
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            self.crossref(device, dtype, op)

    def crossref(self, device, dtype, op):
        """Each ATen op of forward and backward, against its fake."""
        for sample in first(drawn_on_cpu(op, device, dtype, requires_grad=True), 2):
            leaves = [t for t in tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
            with CrossRefFakeMode():
                outputs = processed(sample, call(op, sample))
                if outputs and leaves:
                    torch.autograd.grad(outputs, leaves, [torch.ones_like(out) for out in outputs], allow_unused=True)


CLASSES = [TestMeta, TestFakeTensor]
