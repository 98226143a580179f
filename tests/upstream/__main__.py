"""``python -m tests.upstream [--suite NAME ...] [--match TEXT ...] [-n 2] [--json FILE] [--report [--merge FILE ...]]``."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from .framework import Outcome, Test, suites
from .pool import list_tests, run_all
from .report import Results, differs, table, unexpected, write

CONFORMANCE = Path(__file__).parents[2] / "docs" / "conformance.md"


def save(results: Results, path: Path) -> None:
    path.write_text(
        json.dumps([[test.suite, test.cls, test.method, {d: o.as_dict() for d, o in outs.items()}] for test, outs in results.items()])
    )


def load(paths: list[Path]) -> Results:
    """What earlier runs wrote with ``--json``; of a test in several files the last counts."""
    results: Results = {}
    for path in paths:
        for suite, cls, method, outcomes in json.loads(path.read_text()):
            results[Test(suite, cls, method)] = {device: Outcome(**fields) for device, fields in outcomes.items()}
    return results


def selected(names: list[str], match: list[str]) -> list[Test]:
    return [test for test in list_tests(names) if not match or any(part in str(test) for part in match)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description="PyTorch's test framework on device neuron.")
    parser.add_argument("--suite", nargs="+", choices=suites(), default=suites(), help="default: all")
    parser.add_argument("--match", nargs="+", default=[], help="only tests whose suite/Class.name contains one of these")
    parser.add_argument(
        "--share", metavar="I/N", help="only the I-th of N fixed parts, from 0; UPSTREAM_SLICE=I of the pytest entry is I/160"
    )
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--list", action="store_true", help="print the tests and stop")
    parser.add_argument(
        "--report", action="store_true", help=f"write {CONFORMANCE.relative_to(CONFORMANCE.parents[1])}; needs a run of everything"
    )
    parser.add_argument(
        "--merge",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="start from results that --json wrote (the last file wins) and run what they lack",
    )
    parser.add_argument("--as-is", action="store_true", help="with --merge: run nothing")
    parser.add_argument("-n", "--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=90, help="seconds for one test on one device")
    options = parser.parse_args()
    complete = not options.match and not options.share and options.suite == suites()
    if options.report and not complete:
        parser.error("--report is about everything: leave out --suite, --match and --share")
    tests = selected(options.suite, options.match)
    if options.share:
        part, parts = map(int, options.share.split("/"))
        tests = [test for test in tests if test.share(parts) == part]
    if not tests:
        parser.error(f"no test matches {' '.join(options.match)}")
    if options.list:
        print("\n".join(map(str, tests)))
        return 0
    known = load(options.merge)
    results: Results = {test: known[test] for test in tests if test in known}
    lacking = [test for test in tests if test not in known]
    short, saved = 0, time.monotonic()
    for test, outcomes in run_all([] if options.as_is else lacking, options.workers, options.limit):
        results[test] = outcomes
        short += differs(outcomes)
        if sys.stderr.isatty():
            print(f"\r{len(results)}/{len(tests)}, {short} short: {str(test)[:90]:<90}", end="", file=sys.stderr, flush=True)
        elif len(results) % 500 == 0:
            print(f"{len(results)}/{len(tests)}, {short} short of the CPU", file=sys.stderr, flush=True)
        if options.json and time.monotonic() - saved > 30:
            save(results, options.json)
            saved = time.monotonic()
    if options.json:
        save(results, options.json)
    return finish(results, complete, len(tests) - len(results), options.report)


def finish(results: Results, complete: bool, missing: int, report: bool) -> int:
    print(table(results))
    problems = unexpected(results, complete and not missing)
    print("\n".join(problems))
    if report:
        write(results, f"{missing} tests" if missing else "", CONFORMANCE)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
