"""Counts results and holds them against the expectations table."""

from typing import Any

from .expectations import EXPECTED_FAILURES, reason

Results = list[dict[str, Any]]


def counted(results: Results) -> Results:
    """Those in the denominator: what the CPU itself can do."""
    return [result for result in results if result["status"] != "excluded"]


def unexpected(results: Results, complete: bool = False) -> list[str]:
    """Failures without a row, rows that pass, and (``complete``: a run of everything) rows that match nothing."""
    lines = []
    for result in counted(results):
        known = reason(result["op"], result["dtype"])
        name = f"{result['op']} {result['dtype']}"
        if result["status"] == "pass" and known:
            lines.append(f"{name}: passes now; remove its row from tests/opinfo/expectations.py")
        elif result["status"] != "pass" and not known:
            lines.append(f"{name}: {result['status']} ({result['failed']} of {result['samples']} samples): {'; '.join(result['failures'])}")
    if complete:
        seen = {(result["op"], result["dtype"]) for result in counted(results)}
        dtypes = {result["dtype"] for result in results}
        lines += [
            f"{row.op} {dtype}: row matches no variant that the CPU passes"
            for row in EXPECTED_FAILURES
            for dtype in row.dtypes
            if dtype in dtypes and (row.op, dtype) not in seen
        ]
    return lines


def table(results: Results) -> str:
    """One line a dtype: variants that pass, of those that count; samples; gradients compared; seconds."""
    lines = [f"{'dtype':<10} {'passed':>7} {'of':>5} {'%':>7} {'samples':>8} {'gradients':>9} {'seconds':>8}  excluded (CPU cannot)"]
    for dtype in dict.fromkeys(result["dtype"] for result in results):
        mine = [result for result in results if result["dtype"] == dtype]
        total = counted(mine)
        passed = sum(result["status"] == "pass" for result in total)
        share = 100 * passed / len(total) if total else 0.0
        sums = {key: sum(result[key] for result in total) for key in ("samples", "gradients", "seconds")}
        counts = f"{dtype:<10} {passed:>7} {len(total):>5} {share:>7.2f}"
        lines.append(f"{counts} {sums['samples']:>8} {sums['gradients']:>9} {sums['seconds']:>8.1f}  {len(mine) - len(total)}")
    return "\n".join(lines)
