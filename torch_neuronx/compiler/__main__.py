"""``python -m torch_neuronx.compiler cache list|prune|verify`` and ``... precompile script.py --target trn2``."""

from __future__ import annotations

import argparse
import sys
import time

from torch_neuronx.command_line import require_script, split_arguments
from torch_neuronx.compiler.cache import Cache, Entry
from torch_neuronx.compiler.errors import CompilerError
from torch_neuronx.compiler.options import TARGETS, _bytes, cache_from_environment


def _show(entries: list[Entry]) -> None:
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        seconds = entry.record.get("seconds")
        cost = f"{seconds:8.1f} s" if seconds is not None else "         -"
        print(f"{entry.state:<8} {entry.size / 2**20:9.2f} MiB {cost}  {used}  {entry.path.parent.name}/{entry.path.name}")


def _cache(options: argparse.Namespace) -> int:
    cache = Cache(cache_from_environment())
    if options.action == "list":
        entries = cache.entries()
        _show(entries)
        print(f"{len(entries)} entries, {sum(entry.size for entry in entries) / 2**20:.1f} MiB in {cache.directory}")
    elif options.action == "prune":
        removed = cache.prune(_bytes(options.max_size) if options.max_size else None)
        _show(removed)
        print(f"{len(removed)} entries removed from {cache.directory}")
    else:
        corrupt = cache.verify()
        _show(corrupt)
        print(f"{len(corrupt)} corrupt entries removed, {len(cache.entries())} are good in {cache.directory}")
    return 0


def _precompile(options: argparse.Namespace) -> int:
    from torch_neuronx.compiler.precompile import precompile

    summary = precompile(options.script, options.arguments, options.target, options.lnc)
    print(summary)
    return 1 if summary.failed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_neuronx.compiler", description="Looks after compiled programs (NEFFs).")
    commands = parser.add_subparsers(dest="command", required=True)
    cache = commands.add_parser("cache", help="the cache on disk")
    cache.add_argument("action", choices=["list", "prune", "verify"])
    cache.add_argument("--max-size", help="prune to this size, as in 500M or 20G (default: TORCH_NEURONX_NEFF_CACHE_SIZE)")
    precompile = commands.add_parser("precompile", help="runs a script on the emulated target and compiles what it would run on a chip")
    precompile.add_argument("script")
    precompile.add_argument("--target", choices=TARGETS, default=None, help="default: NEURON_PLATFORM_TARGET_OVERRIDE, else this machine's")
    precompile.add_argument("--lnc", type=int, choices=(1, 2), default=None)
    precompile.epilog = "What follows -- is the script's."
    given = sys.argv[1:] if arguments is None else arguments
    ours, theirs = split_arguments(given)
    options = parser.parse_args(ours)
    options.arguments = theirs
    if options.command == "precompile":
        require_script(precompile, options.script)
    try:
        return _cache(options) if options.command == "cache" else _precompile(options)
    except CompilerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
