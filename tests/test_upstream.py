"""PyTorch's own device-generic tests: what passes on the CPU passes on ``neuron``, but for the rows of tests/upstream/expectations.py."""

import os

import pytest

from tests.upstream.framework import Test, suites
from tests.upstream.pool import list_tests, run_all
from tests.upstream.report import asked, table, unexpected

SLICES = 160
# Which one `make test` runs. It becomes the day's number when all slices have been run and their rows are in the table.
SLICE = 110


def chosen_slice(tests: list[Test]) -> tuple[int, list[Test]]:
    """One of SLICES fixed shares, SLICE or the one that UPSTREAM_SLICE names; and its number, to run it again."""
    chosen = int(os.environ.get("UPSTREAM_SLICE", SLICE)) % SLICES
    return chosen, [test for test in tests if test.share(SLICES) == chosen]


@pytest.mark.timeout(600)
def test_slice() -> None:
    number, tests = chosen_slice(list_tests(suites()))
    results = dict(run_all(tests))
    print(f"slice {number} of {SLICES}\n{table(results)}")
    assert sum(map(asked, results.values())) > len(tests) // 3, "the CPU passes few of these tests: were they instantiated?"
    problems = unexpected(results)
    assert not problems, f"slice {number} of {SLICES} (UPSTREAM_SLICE={number}):\n" + "\n".join(problems)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_everything() -> None:
    """All suites; the bar is the project's: under 0.5 % and under 500 fall short of the CPU, rows included."""
    from tests.upstream.report import differs

    results = dict(run_all(list_tests(suites())))
    print(table(results))
    problems = unexpected(results, complete=True)
    assert not problems, "\n".join(problems)
    short = sum(map(differs, results.values()))
    assert short < 500
    assert short < 0.005 * sum(map(asked, results.values()))
