"""Every op of PyTorch's table gives on ``neuron`` what it gives on the CPU: forward and gradient, all samples, cache miss and hit."""

import pytest

from tests.opinfo.expectations import ALL
from tests.opinfo.names import slice_of_today, variant_names
from tests.opinfo.report import counted, table, unexpected
from tests.worker_pool import run_all

SLICES = 24


@pytest.mark.timeout(600)
def test_todays_slice() -> None:
    """A share of the table that changes by the day, in all dtypes. OPINFO_SLICE=<number> repeats one."""
    number, names = slice_of_today(variant_names(), SLICES)
    results = list(run_all([(name, dtype) for dtype in ALL for name in names]))
    print(f"slice {number} of {SLICES}\n{table(results)}")
    assert len(counted(results)) > 50, "the slice is nearly empty: the table was not read"
    problems = unexpected(results)
    assert not problems, f"slice {number} of {SLICES} (OPINFO_SLICE={number}):\n" + "\n".join(problems)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ALL)
def test_everything(dtype: str) -> None:
    """All variants; the bars are the project's, over the variants that the CPU passes."""
    results = list(run_all([(name, dtype) for name in variant_names()]))
    print(table(results))
    problems = unexpected(results, complete=True)
    assert not problems, "\n".join(problems)
    total = counted(results)
    share = sum(result["status"] == "pass" for result in total) / len(total)
    assert share >= (0.995 if dtype == "float32" else 0.99)
