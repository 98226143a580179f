"""``python -m tests.lowering [--dtype float32 ...] [--match conv] [--json out.json] [-n 2]``."""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from tests.opinfo.names import variant_names
from tests.worker_pool import run_all

from .expectations import ALL
from .report import table, unexpected


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lowering", description=__doc__)
    parser.add_argument("--dtype", nargs="+", choices=ALL, default=list(ALL), help="dtypes to run (default: all)")
    parser.add_argument("--match", nargs="+", default=[], help="only variants whose name contains one of these")
    parser.add_argument("--names", nargs="+", default=[], help="only these variants")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("-n", "--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=600, help="seconds for one variant")
    options = parser.parse_args()
    names = [name for name in variant_names() if not options.match or any(part in name for part in options.match)]
    names = [name for name in names if not options.names or name in options.names]
    jobs = [(name, dtype) for dtype in options.dtype for name in names]
    if not jobs:
        parser.error(f"no variant matches {' '.join(options.match + options.names)}")
    results = []
    for result in run_all(jobs, options.workers, options.limit, check="tests.lowering.check:check_variant"):
        results.append(result)
        if options.json and len(results) % 20 == 0:
            options.json.write_text(json.dumps(results, indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    print(table(results))
    complete = not options.match and not options.names and "float32" in options.dtype  # whose rows the table has
    problems = unexpected(results, complete)
    print("\n".join(problems))
    print(Counter(result["status"] for result in results))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
