"""Fills the cache for a script, on a machine without a chip: runs it on the emulated target and compiles each Program that it makes."""

from __future__ import annotations

import runpy
import sys
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch_neuronx.compiler.driver import Compiled, compile_in_background
from torch_neuronx.compiler.errors import CompilerError
from torch_neuronx.compiler.options import Options, find_compiler, from_environment


@dataclass
class Summary:
    """What became of a script's Programs."""

    target: str
    compiled: int = 0
    cached: int = 0
    not_lowered: dict[str, str] = field(default_factory=dict)  # overload -> reason
    failed: dict[str, str] = field(default_factory=dict)  # overload -> the compiler's error

    def __str__(self) -> str:
        lines = [f"{self.compiled} programs compiled for {self.target}, {self.cached} were in the cache"]
        lines += [f"  on the host   {op}: {reason}" for op, reason in sorted(self.not_lowered.items())]
        lines += [f"  refused       {op}: {error}" for op, error in sorted(self.failed.items())]
        return "\n".join(lines)


class _Precompiler:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.summary = Summary(options.target)
        self.waiting: list[tuple[str, Future[Compiled]]] = []

    def add(self, recorded: Any) -> None:
        """Lowers at once and compiles in the background."""
        from torch_neuronx.lowering import NotLowered, lower

        name = recorded.op.name()
        if recorded.program is None:
            self.summary.not_lowered[name] = "the chip has no tensors of this layout"
            return
        try:
            lowered = lower(recorded.program, self.options.target)
        except NotLowered as error:
            self.summary.not_lowered[name] = error.reason
            return
        self.waiting.append((name, compile_in_background(lowered.hlo(), self.options, name, lowered.lines)))

    def finish(self) -> Summary:
        keys = set()
        for name, future in self.waiting:
            try:
                result = future.result()
            except CompilerError as error:
                self.summary.failed[name] = str(error)
                continue
            if result.key not in keys:
                keys.add(result.key)
                self.summary.compiled += result.compiled
                self.summary.cached += not result.compiled
        return self.summary


def precompile(script: str, arguments: list[str], target: str | None = None, lnc: int | None = None) -> Summary:
    """Runs ``script`` as ``__main__`` with ``arguments`` and compiles its Programs for ``target``.

    Raises CompilerNotFound when there is no neuronx-cc; what the script raises is raised after the compilers have finished.
    """
    from torch_neuronx.lowering.recorder import Recorder

    find_compiler()
    work = _Precompiler(from_environment(target, lnc))
    before = sys.argv
    sys.argv = [script, *arguments]
    try:
        with Recorder(work.add):
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = before
        summary = work.finish()
    return summary
