"""Counts results and holds them against the expectations table."""

from typing import Any

from .expectations import ROWS, reason

Results = list[dict[str, Any]]


def counted(results: Results) -> Results:
    """Those in the denominator: what the CPU itself can do."""
    return [result for result in results if result["status"] != "excluded"]


def share(results: Results) -> float:
    """Passed, of those that count."""
    total = counted(results)
    return sum(result["status"] == "pass" for result in total) / len(total) if total else 1.0


def unexpected(results: Results, complete: bool = False) -> list[str]:
    """In float32: failures without a row, rows that pass, and (``complete``: a run of everything) rows that match nothing."""
    lines = []
    for result in counted(results):
        known = reason(result["op"])
        if result["dtype"] != "float32":
            continue
        name = f"{result['op']} {result['dtype']}"
        if result["status"] == "pass" and known:
            lines.append(f"{name}: passes now; remove its row from tests/lowering/expectations.py")
        elif result["status"] != "pass" and not known:
            lines.append(f"{name}: {result['status']} ({result['failed']} of {result['samples']} samples): {'; '.join(result['failures'])}")
    if complete:
        seen = {result["op"] for result in counted(results)}
        lines += [f"{op}: row matches no variant that the CPU passes" for op in ROWS if op not in seen]
    return lines


def table(results: Results) -> str:
    """One line a dtype."""
    lines = [f"{'dtype':<10} {'passed':>7} {'of':>5} {'%':>7} {'not lowered':>12} {'samples':>8} {'gradients':>9} {'seconds':>8}"]
    for dtype in dict.fromkeys(result["dtype"] for result in results):
        total = counted([result for result in results if result["dtype"] == dtype])
        passed = sum(result["status"] == "pass" for result in total)
        refused = sum(result["status"] == "not lowered" for result in total)
        sums = {key: sum(result[key] for result in total) for key in ("samples", "gradients", "seconds")}
        lines.append(
            f"{dtype:<10} {passed:>7} {len(total):>5} {100 * share(total):>7.2f} {refused:>12} "
            f"{sums['samples']:>8} {sums['gradients']:>9} {sums['seconds']:>8.1f}"
        )
    return "\n".join(lines)
