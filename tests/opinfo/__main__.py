"""``python -m tests.opinfo [--dtype float32 ...] [--match conv] [--json out.json] [-n 2]``."""

import argparse
import json
import os
import sys
from pathlib import Path

from tests.worker_pool import run_all

from .expectations import ALL
from .names import variant_names
from .report import table, unexpected


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    parser.add_argument("--dtype", nargs="+", choices=ALL, default=list(ALL), help="dtypes to run (default: all)")
    parser.add_argument("--match", nargs="+", default=[], help="only variants whose name contains one of these")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("-n", "--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one variant")
    options = parser.parse_args()
    names = [name for name in variant_names() if not options.match or any(part in name for part in options.match)]
    jobs = [(name, dtype) for dtype in options.dtype for name in names]
    if not jobs:
        parser.error(f"no variant matches {' '.join(options.match)}")
    results = []
    for result in run_all(jobs, options.workers, options.limit):
        results.append(result)
        if sys.stderr.isatty():
            print(f"\r{len(results)}/{len(jobs)} {result['op'][:60]:<60}", end="", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    print(table(results))
    problems = unexpected(results, complete=not options.match)
    print("\n".join(problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
