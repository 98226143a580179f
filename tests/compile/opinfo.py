"""PyTorch's op table through ``torch.compile(backend="neuron")``: each variant must give the bits that eager gives.

``python -m tests.compile.opinfo [--dynamic] [--match conv]`` prints a table.
"""

import argparse
import copy
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.opinfo.core import SampleInput

from tests.opinfo.check import OPS, Result, describe
from tests.opinfo.expectations import VALUES_ARE_UNDEFINED
from tests.opinfo.forms import SEED, Call, Outcome
from tests.opinfo.names import variant_names
from tests.opinfo.report import counted, table
from tests.worker_pool import run_all

# Read by the workers.
DYNAMIC = "OPINFO_COMPILE_DYNAMIC"
SAMPLES = "OPINFO_COMPILE_SAMPLES"


EXACT = {"rtol": 0.0, "atol": 0.0}


class CompiledCall(Call):
    """A sample whose op is compiled."""

    def __init__(self, op: Any, sample: SampleInput, dynamic: bool | None, backend: str = "neuron") -> None:
        super().__init__(op, sample)
        function = op.op
        torch.compiler.reset()
        self.op = copy.copy(op)
        self.op.op = torch.compile(lambda *args, **kwargs: function(*args, **kwargs), backend=backend, dynamic=dynamic)


def compare(actual: Outcome, expected: Outcome, values: bool, **tolerance: float) -> int:
    """Bit for bit (or within ``rtol``, ``atol``), dtype and shape included. Gives the number of gradients."""
    for what, got, wanted in (("result", actual.outputs, expected.outputs), ("gradient", actual.gradients, expected.gradients)):
        assert (got is None) == (wanted is None), f"{what}s: {got is not None}, expected {wanted is not None}"
        assert len(got or ()) == len(wanted or ()), f"{len(got or ())} {what}s, expected {len(wanted or ())}"
        for index, (a, e) in enumerate(zip(got or (), wanted or (), strict=True)):
            if not isinstance(e, torch.Tensor):
                assert type(a) is type(e), f"{what} {index}: {a!r}, expected {e!r}"
                continue
            assert (a.dtype, a.shape, a.device, a.layout) == (e.dtype, e.shape, e.device, e.layout), f"{what} {index}: {a}, expected {e}"
            if values:
                try:
                    torch.testing.assert_close(a.detach().cpu(), e.detach().cpu(), equal_nan=True, **tolerance)
                except AssertionError as error:
                    raise AssertionError(f"{what} {index}: {error}") from error
    return len(expected.gradients or ())


def check_sample(op: Any, sample: SampleInput, dynamic: bool | None, result: Result) -> None:
    """Eager's bits; where PyTorch decomposes or differentiates otherwise when it traces (interpolate, linalg.eig), the bits of its own
    ``aot_eager``, and eager's within PyTorch's tolerance."""
    try:
        expected = Call(op, sample).functional("neuron")
    except Exception:
        result.excluded += 1
        return
    values = op.name not in VALUES_ARE_UNDEFINED
    compiled = CompiledCall(op, sample, dynamic)
    outcomes = [compiled.functional("neuron") for _ in ("recorded", "replayed")]
    try:
        for outcome in outcomes:
            result.gradients += compare(outcome, expected, values, **EXACT)
    except AssertionError:
        traced = CompiledCall(op, sample, dynamic, "aot_eager").functional("neuron")
        for outcome in outcomes:
            compare(outcome, traced, values, **EXACT)
            result.gradients += compare(outcome, expected, values)


def check_variant(name: str, dtype_name: str) -> Result:
    """Checks the first samples of ``name`` in ``dtype_name``, forward and gradient; the environment says how many, and whether dynamic."""
    warnings.simplefilter("ignore")
    dynamic = True if os.environ.get(DYNAMIC) == "1" else None
    limit = int(os.environ.get(SAMPLES, "3"))
    op, dtype = OPS[name], getattr(torch, dtype_name)
    result, start = Result(name, dtype_name), time.monotonic()
    if not op.supports_dtype(dtype, "cpu"):
        result.status = "excluded"
        return result
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(SEED)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=gradients):
        if result.samples == limit:
            break
        result.samples += 1
        try:
            check_sample(op, sample, dynamic, result)
        except Exception as error:
            result.failed += 1
            message = describe(error)
            if message not in result.failures:
                result.failures.append(message)
    result.status = "fail" if result.failed else "excluded" if result.excluded == result.samples else "pass"
    result.seconds = time.monotonic() - start
    return result


def run(names: list[str], dynamic: bool, samples: int = 3, workers: int = 2) -> Iterator[dict[str, Any]]:
    """Results of ``names`` in float32, in the order in which they come."""
    os.environ[DYNAMIC], os.environ[SAMPLES] = str(int(dynamic)), str(samples)
    yield from run_all([(name, "float32") for name in names], workers, check="tests.compile.opinfo:check_variant")


def failures(results: list[dict[str, Any]]) -> list[str]:
    return [f"{result['op']}: {'; '.join(result['failures'])}" for result in counted(results) if result["status"] != "pass"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compile.opinfo", description=__doc__)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--match", nargs="+", default=[], help="only variants whose name contains one of these")
    parser.add_argument("--samples", type=int, default=3, help="of each variant (3)")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("-n", "--workers", type=int, default=2)
    options = parser.parse_args()
    names = [name for name in variant_names() if not options.match or any(part in name for part in options.match)]
    results = []
    for result in run(names, options.dynamic, options.samples, options.workers):
        results.append(result)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    print(table(results))
    print("\n".join(failures(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
