"""PyTorch's databases of custom operators and of higher-order operators (``cond``, ``scan``, flex attention), run eagerly on a device."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_device_type import OpDTypes, ops
from torch.testing._internal.common_utils import TestCase, parametrize
from torch.testing._internal.custom_op_db import custom_op_db
from torch.testing._internal.hop_db import hop_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.testing._internal.optests import opcheck
from torch.utils._pytree import tree_leaves

from tests.opinfo.forms import cotangents
from tests.opinfo.samples import Placement

from .reference import assert_matches, seeded

SAMPLES = 3
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


# The database gives its operator a kernel for each device that it knows by name.
@torch.library.impl("testlib::mutating_custom_op", "neuron")
def mutating_custom_op(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x.add_(5)
    z.add_(5)
    return x.clone(), z.clone(), x + z


def run(function: Callable[..., Any], sample: SampleInput, device: str) -> tuple[Any, list[torch.Tensor | None]]:
    """The outputs, and the gradients of the inputs that require them."""
    place = Placement(device)
    value, args, kwargs = place(sample.input), place(sample.args), place(sample.kwargs)
    with seeded(device):
        result = function(value, *args, **kwargs)
    targets = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    leaves = [tensor for tensor in place.tensors if tensor.requires_grad]
    if not targets or not leaves:
        return result, []
    return result, list(torch.autograd.grad(targets, leaves, cotangents(targets), allow_unused=True))


class ComparesOps(TestCase):
    def compare(self, op: OpInfo, device: str, dtype: torch.dtype) -> None:
        requires_grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        with seeded("cpu"):
            samples = list(islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), SAMPLES))
        for sample in samples:
            torch._dynamo.reset()
            expected = run(op.op, sample, "cpu")
            torch._dynamo.reset()
            assert_matches(self, run(op.op, sample, device), expected, device)


class TestCustomOps(ComparesOps):
    @ops(custom_op_db)
    def test_results(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Kernels in numpy, through ``tensor.cpu()``: outputs and gradients."""
        self.compare(op, device, dtype)

    @parametrize("check", CHECKS)
    @ops(custom_op_db, dtypes=OpDTypes.any_one)
    def test_opcheck(self, device: str, dtype: torch.dtype, op: OpInfo, check: str) -> None:
        """``torch.library.opcheck``."""
        for sample in islice(op.sample_inputs(device, dtype, requires_grad=op.supports_autograd), SAMPLES):
            opcheck(op.op, (sample.input, *sample.args), sample.kwargs, test_utils=check)


class TestHOP(ComparesOps):
    @ops(hop_db, allowed_dtypes=(torch.float32,))
    def test_eager(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self.compare(op, device, dtype)


CLASSES = [TestCustomOps, TestHOP]
