"""PyTorch's op table in float32 through torch.compile, static and dynamic: eager's bits."""

import pytest

from tests.compile.opinfo import failures, run
from tests.opinfo.names import slice_of_today, variant_names
from tests.opinfo.report import counted, table

SLICES = 48
BAR = 0.98


@pytest.mark.timeout(900)
def test_todays_slice():
    """A share of the table that changes by the day; OPINFO_SLICE=<number> repeats one."""
    number, names = slice_of_today(variant_names(), SLICES)
    results = list(run(names, dynamic=number % 2 == 1, samples=1))
    assert len(counted(results)) > 4, "the slice is nearly empty: the table was not read"
    failed = failures(results)
    assert not failed, f"slice {number} of {SLICES} (OPINFO_SLICE={number}):\n" + "\n".join(failed)


@pytest.mark.full
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_everything(dynamic):
    results = list(run(variant_names(), dynamic))
    print(table(results))
    total = counted(results)
    share = sum(result["status"] == "pass" for result in total) / len(total)
    assert share >= BAR, "\n".join(failures(results))
