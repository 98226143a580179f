"""The one table of tests that pass on the CPU and not on ``neuron``, row by row, each with its reason.

A test that fails without a row, a row one of whose tests passes, and (in a run of everything) a row that matches nothing, all fail the
run: a fixed bug takes its row away.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from .framework import Test


@dataclass(frozen=True)
class Row:
    """``test``: a pattern (``*``, ``?``) for ``suite/Class.method`` with ``{device}`` in the method's name, less the dtype's suffix;
    ``dtypes``: names of dtypes, empty for all; ``reason``: the cause, not the symptom; ``upstream``: where the fault is PyTorch's,
    ``file:line`` in the installed torch."""

    test: str
    dtypes: tuple[str, ...]
    reason: str
    upstream: str = ""

    def matches(self, test: Test) -> bool:
        patterns = [f"{self.test}_{dtype}" for dtype in self.dtypes] or [self.test, f"{self.test}_*"]
        name = str(test).replace("{device}", "@")
        return any(fnmatchcase(name, pattern.replace("{device}", "@")) for pattern in patterns)


ROWS: list[Row] = [
    Row(
        "*/Test*.test_*sparse_mm_reduce_{device}",
        (),
        "The table itself marks the op onlyCPU, so it is skipped on every other device.",
        "torch/testing/_internal/common_methods_invocations.py:14737",
    ),
    Row(
        "metadata/TestFakeTensor.test_fake_crossref_backward_*amp_nn_functional_embedding_bag_{device}",
        (),
        "The meta function foretells the CPU kernel's results (offset2bag may be empty) only where the device is called cpu; the emulated "
        "device runs that kernel too.",
        "torch/_meta_registrations.py:4463",
    ),
    Row(
        "opinfo/TestCommon.test_errors_narrow_copy_{device}",
        (),
        "narrow_copy has a kernel of its own on the CPU, which the emulated device runs too; it words two errors differently from the "
        "composite of other devices, and the table asks for the CPU's words only where the device is called cpu.",
        "torch/testing/_internal/common_methods_invocations.py:5904",
    ),
    Row(
        "module/TestModule.test_channels_last_nn_GroupNorm_{device}",
        ("float32",),
        "The gradient has the right values and contiguous strides: the derivative's formula keeps channels_last for device cpu alone.",
        "torchgen/packaged/autograd/derivatives.yaml:1290",
    ),
    Row(
        "module/TestModule.test_cpu_gpu_parity_nn_LinearCrossEntropyLoss_{device}",
        ("bfloat16",),
        "Chunked with acc_policy='auto': a table of device names chooses 'accurate' on the CPU and 'compact' on an unknown one, so the "
        "gradients are rounded in another place.",
        "torch/nn/modules/linear_cross_entropy_options.py:19",
    ),
    Row(
        "optimizer/TestOptimRenewed.test_save_load_implementation_foreach_ASGD_{device}",
        ("float32",),
        "ASGD keeps its step on the parameter's device; load_state_dict moves every other state to the new device but never the step, and "
        "the foreach step refuses the mixture. So is a checkpoint of any accelerator resumed on the CPU.",
        "torch/optim/optimizer.py:794",
    ),
    Row(
        "metadata/TestFakeTensor.test_fake*native_batch_norm*_{device}",
        (),
        "In evaluation the CPU kernel, which the emulated device runs too, gives empty statistics; the meta function foretells that only "
        "where the device is called cpu.",
        "torch/_decomp/decompositions.py:2130",
    ),
    Row(
        "metadata/TestFakeTensor.test_fake_crossref_backward_*amp_nn_functional_batch_norm_{device}",
        (),
        "The same, within nn.functional.batch_norm.",
        "torch/_decomp/decompositions.py:2130",
    ),
    Row(
        "metadata/TestFakeTensor.test_fake_autocast_nn_functional_binary_cross_entropy_{device}",
        (),
        "Refused under autocast, as on CUDA, whose lists neuron has; the CPU's list runs it in float32.",
    ),
    Row(
        "metadata/TestFakeTensor.test_fake_crossref_backward_amp_nn_functional_binary_cross_entropy_{device}",
        (),
        "The same.",
    ),
    Row(
        "opinfo/TestCommon.test_dtypes_histc_{device}",
        (),
        "Takes integers, as on CUDA; the table expects that only where the device is called cuda.",
        "torch/testing/_internal/common_methods_invocations.py:21457",
    ),
    Row(
        "opinfo/TestCommon.test_dtypes_nn_functional_rrelu_{device}",
        (),
        "Takes float16, as on CUDA; the table expects that only where the device is called cuda.",
        "torch/testing/_internal/common_methods_invocations.py:17984",
    ),
    Row(
        "numerics/TestBinaryUfuncs.test_type_promotion__refs_copysign_{device}",
        (),
        "The Python reference refuses a 0-dim tensor of the CPU beside a tensor of any other device; torch.copysign takes it.",
        "torch/_refs/__init__.py:1289",
    ),
    Row(
        "foreach/TestForeach.test_*place__foreach_[as][du][db]_{device}",
        ("bfloat16",),
        "ATen's scalar kernel, which takes the last elements of a tensor and strided ones, rounds `alpha * other` to the narrow type "
        "before it adds; its vectors do not. On neuron no element does (tests/test_tile_range.py).",
        "torch/include/ATen/native/cpu/Loops.h:226",
    ),
    Row(
        "foreach/TestForeach.test_mixed_lists__foreach_add_{device}",
        ("float32",),
        "The same.",
        "torch/include/ATen/native/cpu/Loops.h:226",
    ),
    Row(
        "foreach/TestForeach.test_strided__foreach_add_{device}",
        ("bfloat16",),
        "The same.",
        "torch/include/ATen/native/cpu/Loops.h:226",
    ),
    Row(
        "optimizer/TestOptimRenewed.test_dtypes_implementation_forloop_LBFGS_{device}",
        ("bfloat16", "float16"),
        "The same, in add_(d, alpha=t): the line search divides by differences of such sums, where one unit in the last place is much.",
        "torch/optim/lbfgs.py:428",
    ),
    Row(
        "numerics/TestReductions.test_values__refs_linalg_vector_norm_{device}",
        ("float32", "complex64"),
        "The reference raises to 0.9 and back, which takes the largest number just over the limit with an exponent in float32, as ATen's "
        "vectors have it, and just not with one in float64, as its scalar kernel has it (tests/test_tile_range.py).",
        "torch/_refs/linalg/__init__.py:193",
    ),
    Row(
        "custom_op/TestCustomOps.test_opcheck_check_test_autograd_registration_Numpy[!N]*_{device}",
        (),
        "The check asks for devices cpu, cuda and xpu by name and raises NotImplementedError for all others.",
        "torch/testing/_internal/optests/autograd_registration.py:87",
    ),
]


def row_of(test: Test) -> Row | None:
    return next((row for row in ROWS if row.matches(test)), None)
