"""Compares one op and dtype on ``neuron`` with the CPU, over all its samples."""

import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode

from .expectations import VALUES_ARE_UNDEFINED
from .forms import SEED, Call, Form, Outcome, other_forms

SHIFT = 3  # elements
OPS: dict[str, OpInfo] = {op.full_name: op for op in op_db}


@dataclass
class Result:
    """What became of a variant. ``excluded``: the CPU has no such dtype, or fails all samples itself, so it counts nowhere."""

    op: str
    dtype: str
    status: str = "pass"  # pass | fail | not lowered | excluded | crash | timeout
    samples: int = 0
    failed: int = 0
    excluded: int = 0
    gradients: int = 0
    seconds: float = 0
    failures: list[str] = field(default_factory=list)

    def fail(self, error: BaseException) -> None:
        """Counts a sample that failed; keeps what is said, of the first four that say something else."""
        self.failed += 1
        message = describe(error)
        if message not in self.failures and len(self.failures) < 4:
            self.failures.append(message)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class CpuFailed(Exception):
    """The CPU itself refuses this sample."""


def on_cpu(form: Form) -> Outcome:
    try:
        return form("cpu")
    except Exception as error:
        raise CpuFailed(str(error)) from error


def tolerances(op: OpInfo, dtype: torch.dtype) -> tuple[float, float]:
    """(rtol, atol): PyTorch's defaults, or what its tests of this op on the CPU allow when that is more."""
    rtol, atol = default_tolerances(dtype)
    for info in op.decorators:
        if not isinstance(info, DecorateInfo) or info.device_type not in (None, "cpu") or (info.dtypes and dtype not in info.dtypes):
            continue
        for decorator in info.decorators:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                rtol, atol = max(rtol, decorator.d[dtype].rtol), max(atol, decorator.d[dtype].atol)
            elif isinstance(decorator, precisionOverride) and dtype in decorator.d:
                atol = max(atol, decorator.d[dtype])
    return rtol, atol


def compare_leaf(actual: Any, expected: Any, limits: Callable[[torch.dtype], tuple[float, float]], values: bool) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), f"{actual!r}, expected a tensor"
        assert actual.device.type == "neuron", f"result on {actual.device}"
        assert (actual.dtype, actual.shape, actual.layout) == (expected.dtype, expected.shape, expected.layout), (
            f"{actual.dtype} {tuple(actual.shape)} {actual.layout}, expected {expected.dtype} {tuple(expected.shape)} {expected.layout}"
        )
        if expected.layout is torch.strided and expected.numel() > 1:
            place = actual.stride(), actual.storage_offset()
            wanted = expected.stride(), expected.storage_offset()
            assert place == wanted, f"strides and offset {place}, expected {wanted}"
        if values:
            rtol, atol = limits(expected.dtype)
            torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=rtol, atol=atol, equal_nan=True)
        return
    assert type(actual) is type(expected), f"{type(actual).__name__} {actual!r}, expected {type(expected).__name__} {expected!r}"
    if values and isinstance(expected, (float, complex)):
        torch.testing.assert_close(actual, expected, equal_nan=True)
    elif values:
        assert actual == expected, f"{actual!r}, expected {expected!r}"


def compare(actual: list[Any], expected: list[Any], limits: Callable[[torch.dtype], tuple[float, float]], values: bool) -> None:
    assert len(actual) == len(expected), f"{len(actual)} results, expected {len(expected)}"
    for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
        try:
            compare_leaf(a, e, limits, values)
        except AssertionError as error:
            raise AssertionError(f"result {index}: {error}") from error


class SeesRandomOps(TorchDispatchMode):
    """``found`` after a run in which an op drew random numbers."""

    found = False
    # Tagged, but without dropout they draw nothing, and the CPU has no fused kernel with dropout.
    draws_nothing = (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, torch.ops.aten._fused_sdp_choice)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= torch.Tag.nondeterministic_seeded in func.tags and func.overloadpacket not in self.draws_nothing
        return func(*args, **(kwargs or {}))


def is_random(form: Form) -> bool:
    with SeesRandomOps() as mode:
        form("cpu")
    return mode.found


def check_form(op: OpInfo, form: Form, expected: Outcome) -> int:
    """Runs ``form`` on ``neuron`` and gives the number of gradients compared.

    Values of a random result are not compared; which is random is asked only when they differ.
    """
    values = op.name not in VALUES_ARE_UNDEFINED
    gradients = 0
    actual = form("neuron")
    for phase, got, wanted in (("forward", actual.outputs, expected.outputs), ("gradient", actual.gradients, expected.gradients)):
        if wanted is None:
            continue
        assert got is not None, f"{phase}: no gradient"
        gradients += phase == "gradient"
        try:
            compare(got, wanted, lambda dtype: tolerances(op, dtype), values)
        except AssertionError as error:
            if values and is_random(form):
                values = False
                compare(got, wanted, lambda dtype: tolerances(op, dtype), values)
                continue
            raise AssertionError(f"{phase}: {error}") from error
    return gradients


def check_call(call: Call) -> int:
    """Checks all forms that the CPU runs and gives the number of gradients compared. The functional form must run there."""
    expected = on_cpu(call.functional)
    gradients = check_form(call.op, call.functional, expected)
    for name, form in other_forms(call, expected):
        try:
            wanted = on_cpu(form)
        except CpuFailed:
            continue
        try:
            check_form(call.op, form, wanted)
        except Exception as error:
            raise type(error)(f"{name}: {error}").with_traceback(error.__traceback__) from error
    return gradients


def check_sample(op: OpInfo, sample: SampleInput, again: SampleInput, result: Result) -> None:
    """``again``: the same sample drawn once more. It runs at another place in its storages, and mostly from the cache: nothing of the
    first run's values, addresses or offsets may be left over there."""
    result.gradients += check_call(Call(op, sample))
    try:
        result.gradients += check_call(Call(op, again, SHIFT))
    except CpuFailed:
        return  # only these values
    except Exception as error:
        raise type(error)(f"second run: {error}").with_traceback(error.__traceback__) from error


def drawn(op: OpInfo, dtype: torch.dtype, gradients: bool, seed: int) -> list[SampleInput]:
    torch.manual_seed(seed)
    return list(op.sample_inputs("cpu", dtype, requires_grad=gradients))


def describe(error: BaseException) -> str:
    text = " ".join(str(error).split())[:400]
    where = ""
    if not isinstance(error, AssertionError):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
        where = f" [{frames[-1].name}]" if frames else ""
    return f"{type(error).__name__}{where}: {text}"


def meta_mismatches() -> int:
    from torch_neuronx import _C

    return int(_C._counters()["meta_mismatches"])


def check_variant(name: str, dtype_name: str) -> Result:
    """Checks all samples of ``name`` ("add", "div.floor_rounding"...: OpInfo.full_name) in ``dtype_name``."""
    warnings.simplefilter("ignore")
    op, dtype = OPS[name], getattr(torch, dtype_name)
    result, start = Result(name, dtype_name), time.monotonic()
    if not op.supports_dtype(dtype, "cpu"):
        result.status = "excluded"
        return result
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    mismatches = meta_mismatches()
    for sample, again in zip(drawn(op, dtype, gradients, SEED), drawn(op, dtype, gradients, SEED + 1), strict=True):
        result.samples += 1
        try:
            check_sample(op, sample, again, result)
        except CpuFailed:
            result.excluded += 1
        except Exception as error:
            result.fail(error)
    mismatches = meta_mismatches() - mismatches
    if mismatches:
        result.failures.append(f"{mismatches} metadata mismatches")
    result.status = "fail" if result.failed or mismatches else "excluded" if result.excluded == result.samples else "pass"
    result.seconds = time.monotonic() - start
    return result
