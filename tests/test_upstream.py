"""PyTorch's own device-generic tests: what passes on the CPU passes on ``neuron``, but for the rows of tests/upstream/expectations.py."""

import os
import re
from datetime import date

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from tests.upstream.__main__ import CONFORMANCE
from tests.upstream.expectations import ROWS
from tests.upstream.framework import Test, suites
from tests.upstream.op_samples import values_defined
from tests.upstream.pool import list_tests, run_all
from tests.upstream.report import asked, known_differences, table, unexpected

SLICES = 160
BAR = {"tests": 500, "percent": 0.5}  # fewer than so many may fall short of the CPU, rows included


def chosen_slice(tests: list[Test]) -> tuple[int, list[Test]]:
    """One of SLICES fixed shares, by the day, or the one that UPSTREAM_SLICE names; and its number, to run it again."""
    chosen = int(os.environ.get("UPSTREAM_SLICE", date.today().toordinal())) % SLICES
    return chosen, [test for test in tests if test.share(SLICES) == chosen]


@pytest.mark.timeout(600)
def test_slice() -> None:
    number, tests = chosen_slice(list_tests(suites()))
    results = dict(run_all(tests))
    print(f"slice {number} of {SLICES}\n{table(results)}")
    assert sum(map(asked, results.values())) > len(tests) // 3, "the CPU passes few of these tests: were they instantiated?"
    problems = unexpected(results)
    assert not problems, f"slice {number} of {SLICES} (UPSTREAM_SLICE={number}):\n" + "\n".join(problems)


def test_the_document_has_the_table() -> None:
    """docs/conformance.md was written from this table, and from a run in which each row stood for something and the bar held."""
    lines = CONFORMANCE.read_text().splitlines()
    section = lines[lines.index("## Known differences") + 2 : lines.index("## What fails on the CPU too") - 1]
    counts = [int(re.search(r"\| (\d+) \|", line)[1]) for line in section[2:]]
    partial = any(line.startswith("Not run for this report") for line in lines)
    assert len(counts) == len(ROWS) and (all(counts) or partial), "run python -m tests.upstream --report, or merge the runs of what changed"
    assert section == known_differences(dict(zip(ROWS, counts, strict=True)))
    total, short, percent = next(line for line in lines if line.startswith("| all |")).strip(" |").split(" | ")[-3:]
    assert int(total) > 25_000 and int(short) == sum(counts) < BAR["tests"] and float(percent) < BAR["percent"]


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_everything() -> None:
    """All suites."""
    from tests.upstream.report import differs

    results = dict(run_all(list_tests(suites())))
    print(table(results))
    problems = unexpected(results, complete=True)
    assert not problems, "\n".join(problems)
    short = sum(map(differs, results.values()))
    assert short < BAR["tests"]
    assert 100 * short < BAR["percent"] * sum(map(asked, results.values()))


def test_comparisons_are_left_out_for_random_ops_alone() -> None:
    """The samples of an op are drawn at random, whatever the op."""
    ops = {op.full_name: op for op in op_db}
    assert values_defined(ops["add"]) and values_defined(ops["linalg.svd"])
    assert not values_defined(ops["nn.functional.dropout"]) and not values_defined(ops["empty_like"])
