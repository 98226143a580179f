"""The op table (``op_db``): what test_ops.py and its kin ask of every op, under the names that the table's decorators refer to."""

import torch
from torch.testing._internal.common_device_type import OpDTypes, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase


class TestCommon(TestCase):
    @ops(op_db, dtypes=OpDTypes.none)
    def test_errors(self, device, op):
        """Wrong inputs raise the exception that the table names, with its message."""
        if op.error_inputs_func is None:
            self.skipTest("no error inputs")
        for case in op.error_inputs(device):
            with self.assertRaisesRegex(case.error_type, case.error_regex):
                sample = case.sample_input
                out = op(sample.input, *sample.args, **sample.kwargs)
                self.assertNotEqual(out, NotImplemented)
                torch.neuron.synchronize()


CLASSES = [TestCommon]
