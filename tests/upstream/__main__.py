"""``python -m tests.upstream [--suite NAME ...] [--match TEXT ...] [-n 2] [--json FILE] [--report]``."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from .framework import Test, suites
from .pool import list_tests, run_all
from .report import Results, differs, table, unexpected, write

CONFORMANCE = Path(__file__).parents[2] / "docs" / "conformance.md"


def save(results: Results, path: Path) -> None:
    path.write_text(
        json.dumps([[test.suite, test.cls, test.method, {d: o.as_dict() for d, o in outs.items()}] for test, outs in results.items()])
    )


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
    results: Results = {}
    short, saved = 0, time.monotonic()
    for test, outcomes in run_all(tests, options.workers, options.limit):
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
    print(table(results))
    problems = unexpected(results, complete)
    print("\n".join(problems))
    if options.report:
        write(results, CONFORMANCE)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
