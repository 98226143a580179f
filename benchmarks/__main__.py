"""``python -m benchmarks``: measures, then prints one table (or JSON)."""

import argparse
import json
import sys

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.table import GROUPS, Row, render

# They register their groups, in the order of the table.
from benchmarks import small_ops, training, fusion, compiled, launch_blocking, memory, copies, autoload, collectives, lowering  # noqa: F401  # isort: skip
from benchmarks import nki_speed  # noqa: F401  # isort: skip


def parse_arguments() -> argparse.Namespace:
    names = ", ".join(map(repr, GROUPS))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="neuron against cpu, interleaved, medians.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"what to measure, all unless given: {names}")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--effort", type=float, default=1.0, help="factor of the number of pairs (1); 0.2 gives a quick look")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a row is over its bar")
    args = parser.parse_args()
    for name in args.groups:
        if name not in GROUPS:
            parser.error(f"there is no group {name!r}; there are {names}")
    if args.effort <= 0:
        parser.error(f"--effort must be positive, not {args.effort}")
    return args


def measure(chosen: list[str], effort: float, console: Console) -> dict[str, list[Row]]:
    results: dict[str, list[Row]] = {}
    with Progress(TextColumn("{task.description:36}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(chosen))
        for name in chosen:
            progress.update(bar, description=name)
            rows = results[name] = []
            for row in GROUPS[name](effort):
                rows.append(row)
                progress.update(bar, description=f"{name}: {row.what}"[:36])
            progress.advance(bar)
    return results


def main() -> int:
    args = parse_arguments()
    # The progress bar goes to stderr, so that stdout holds the results alone.
    results = measure(args.groups or list(GROUPS), args.effort, Console(stderr=True))
    if args.json:
        facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": torch.neuron.get_device_name()}
        print(json.dumps({**facts, "rows": {name: [row.as_dict() for row in rows] for name, rows in results.items()}}, indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 150).print(render(results))
    return int(args.check and any(row.ok is False for rows in results.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
