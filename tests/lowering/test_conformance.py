"""The op table through XLA:CPU: a share each day, everything in the full run."""

import pytest
import torch

from tests.lowering.expectations import ALL
from tests.lowering.report import counted, share, table, unexpected
from tests.opinfo.names import slice_of_today, variant_names
from tests.worker_pool import run_all

SLICES = 40
CHECK = "tests.lowering.check:check_variant"
BARS = {"float32": 0.90, "bfloat16": 0.85, "int32": 0.85, "int64": 0.85, "bool": 0.85, "complex64": 0.85}


@pytest.mark.timeout(600)
def test_todays_slice() -> None:
    """A share of the table that changes by the day. OPINFO_SLICE=<number> repeats one."""
    number, names = slice_of_today(variant_names(), SLICES)
    results = list(run_all([(name, dtype) for dtype in ("float32", "int64") for name in names], check=CHECK))
    print(f"slice {number} of {SLICES}\n{table(results)}")
    assert len(counted(results)) > 10, "the slice is nearly empty: the table was not read"
    problems = unexpected(results)
    assert not problems, f"slice {number} of {SLICES} (OPINFO_SLICE={number}):\n" + "\n".join(problems)


# A chip has no float64; these have it in between. (What has it at its ends is not counted.)
NOT_ON_A_CHIP = frozenset(
    """
    linalg.matrix_rank linalg.matrix_rank.hermitian linalg.pinv linalg.pinv.hermitian linalg.pinv.singular pinverse
    """.split()
)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_modules_for_a_chip_keep_to_its_dtypes() -> None:
    results = list(run_all([(name, "float32") for name in variant_names()], check="tests.lowering.check:check_chip"))
    assert sum(result["status"] == "pass" for result in results) > 400
    assert {result["op"] for result in results if result["status"] == "fail"} == NOT_ON_A_CHIP


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dtype", ALL)
def test_everything(dtype: str) -> None:
    """All variants; the bars are the project's, over the variants that the CPU passes."""
    results = list(run_all([(name, dtype) for name in variant_names()], check=CHECK))
    print(table(results))
    problems = unexpected(results, complete=dtype == "float32")
    assert not problems, "\n".join(problems)
    assert not [result for result in results if result["status"] in ("crash", "timeout")]
    assert share(results) >= BARS[dtype]


def test_the_recurrence_of_hermite_cancels() -> None:
    """The reason in expectations.py: PyTorch's own float32 is off by more than the tolerance, so nothing can be expected to equal it."""
    x, n = torch.linspace(-8, 8, 1000), torch.arange(1000).remainder(9).float()
    exact = torch.special.hermite_polynomial_he(x.double(), n.double())
    error = (torch.special.hermite_polynomial_he(x, n).double() - exact).abs()
    assert (error > 1e-5 + 1.3e-6 * exact.abs()).any()
