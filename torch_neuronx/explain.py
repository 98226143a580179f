"""``torch.neuron.explain()``: what the device did during a block of code, and why it cost what it cost.

The C++ side keeps the counters (``_C._explain_begin``, ``_C._explain_end``, ``_C._counters``); this module only reads and prints them.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from types import TracebackType
from typing import Any

from torch_neuronx import _C

_ROWS = 10  # lines of each table of the text report


class Report:
    """Counters of one block of code; ``print(report)`` gives text, :meth:`as_dict` plain values for assertions."""

    def __init__(self, counters: dict[str, Any]):
        self._counters = counters
        self.readiness: Any = None  #: torch_neuronx.readiness.Report, when a target was named

    def as_dict(self) -> dict[str, Any]:
        """The counters as plain dicts, lists, strings and ints (a copy).

        ``ops``: ``{name: {"calls", "hits", "misses", "inline"}}``; ``misses``: list of ``{"op", "reason", "site"}``;
        ``syncs``: list of ``{"why", "site"}``; ``fallbacks``: list of ``{"op", "reason", "site"}``;
        ``bytes``: ``{"h2d", "d2h", "d2d"}``; ``launches``: int; ``compiled``, ``windows``: ``{"launches", "calls", "fused_calls",
        "unwritten_bytes"}`` of the Programs of many calls that were launched, by compiled graphs and by Adaptive Eager; ``closed_windows``:
        int, also those that ran call by call; ``window_kernels``: int, kernels of ``nki.replace`` that ran in them; ``host_launches``: int,
        those that ran on the host because their program was still being compiled; ``compile``: see
        :func:`torch_neuronx.compile.report.between`.
        """
        return copy.deepcopy(self._counters)

    @property
    def calls(self) -> int:
        """Calls of operators on the device."""
        return self._total("calls")

    @property
    def hits(self) -> int:
        """Calls that found their Program in the cache."""
        return self._total("hits")

    @property
    def misses(self) -> int:
        """Calls that had to build a Program."""
        return self._total("misses")

    @property
    def syncs(self) -> int:
        """Calls that made the host wait for the device; synchronising explicitly is none."""
        return len(self._counters["syncs"])

    @property
    def fallbacks(self) -> int:
        """Calls that ran on the host because the device has no kernel for them."""
        return len(self._counters["fallbacks"])

    @property
    def recompiles(self) -> int:
        """Times that Dynamo compiled a function again, because a guard of the code that it had failed."""
        return len(self._counters["compile"]["recompiles"])

    def _total(self, field: str) -> int:
        return sum(op.get(field, 0) for op in self._counters["ops"].values())

    def __str__(self) -> str:
        moved = self._counters["bytes"]
        lines = [
            "neuron: what ran",
            f"  operators        {self.calls} calls of {len(self._counters['ops'])} ops, {self._counters['launches']} launches",
            f"  cache            {self.hits} hits, {self.misses} misses, {self._total('inline')} inline (both run at once, unlaunched)",
            f"  host waits       {self.syncs}",
            f"  fallbacks        {self.fallbacks}",
            f"  bytes moved      {_size(moved['h2d'])} to the device, {_size(moved['d2h'])} to the host, {_size(moved['d2d'])} on it",
        ]
        if self._counters["host_launches"]:
            lines.append(f"  on the host      {self._counters['host_launches']} launches, whose programs were still being compiled")
        for what, title in (("compiled", "compiled graphs"), ("windows", "adaptive eager")):
            of = self._counters[what]
            if of["launches"]:
                saved = f"{of['fused_calls']} calls fused, {_size(of['unwritten_bytes'])} never written"
                lines.append(f"  {title:<16} {of['launches']} launches of {of['calls']} calls, {saved}")
        if self._counters["closed_windows"]:
            lines.append(
                f"  windows          {self._counters['closed_windows']}, {self._counters['windows']['launches']} of them one launch"
            )
        if self._counters["window_kernels"]:
            lines.append(f"  in their place   {self._counters['window_kernels']} NKI kernels")
        calls = sorted(self._counters["ops"].items(), key=lambda item: (-item[1]["calls"], item[0]))
        lines += _table("operators", [(op["calls"], name) for name, op in calls])
        lines += _table("cache misses", _counted(_at(f"{miss['op']}: {miss['reason']}", miss) for miss in self._counters["misses"]))
        lines += _table("host waits", _counted(_at(sync["why"], sync) for sync in self._counters["syncs"]))
        lines += _table(
            "fallbacks to the host", _counted(_at(f"{item['op']}: {item['reason']}", item) for item in self._counters["fallbacks"])
        )
        if any(self._counters["compile"].values()):
            from torch_neuronx.compile import report

            for title, rows in report.lines(self._counters["compile"]):
                lines += _table(title, rows)
        if self.readiness is not None:
            lines.append(str(self.readiness))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Report calls={self.calls} hits={self.hits} misses={self.misses} syncs={self.syncs} fallbacks={self.fallbacks}>"


def _size(count: int) -> str:
    """ "1.5 MiB": a number of bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def _at(what: str, item: dict[str, Any]) -> str:
    return f"{what}  at {item['site']}" if item.get("site") else what


def _counted(texts: Any) -> list[tuple[int, str]]:
    """Equal lines once, with their number, most frequent first."""
    return [(count, text) for text, count in Counter(texts).most_common()]


def _table(title: str, rows: list[tuple[int, str]]) -> list[str]:
    if not rows:
        return []
    lines = [f"{title}:"] + [f"  {count:>7} x {text}" for count, text in rows[:_ROWS]]
    if len(rows) > _ROWS:
        lines.append(f"          ... and {len(rows) - _ROWS} more; .as_dict() has all of them")
    return lines


def _between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What a block added: the C++ counters run from the start of the process, its notes only while they are asked for."""
    ops = {}
    for name, op in after["ops"].items():
        earlier = before["ops"].get(name, {})
        added = {field: count - earlier.get(field, 0) for field, count in op.items()}
        if any(added.values()):
            ops[name] = added
    return {
        "ops": ops,
        "misses": after["misses"],
        "syncs": after["syncs"],
        "fallbacks": after["fallbacks"],
        "bytes": {way: count - before["bytes"][way] for way, count in after["bytes"].items()},
        "launches": after["launches"] - before["launches"],
        "host_launches": after["host_launches"] - before["host_launches"],
        "compiled": {name: count - before["compiled"][name] for name, count in after["compiled"].items()},
        "windows": {name: count - before["windows"][name] for name, count in after["windows"].items()},
        "closed_windows": after["closed_windows"] - before["closed_windows"],
        "window_kernels": after["window_kernels"] - before["window_kernels"],
    }


class explain:
    """Counts what the device does inside a ``with`` block.

    >>> with torch.neuron.explain() as report:
    ...     step(model, batch)
    >>> print(report)
    >>> assert report.fallbacks == 0

    Args:
        sites: record the Python line of each cache miss, host wait and fallback (default: yes; it costs time only where one happens).
        target: also say what a chip ("trn1", "trn2", "trn3") would make of it: ``report.readiness``. Needs ``torchneuron[compiler]``.

    The report is empty until the block ends. One block at a time in a process: RuntimeError.
    """

    _open: explain | None = None

    def __init__(self, sites: bool = True, target: str | None = None):
        self._sites = sites
        self._watch: Any = None
        if target is not None:
            from torch_neuronx.readiness import Watch

            self._watch = Watch(target)
        self._report = Report(_NOTHING)
        self._before = _NOTHING
        self._compiled_before: Any = None

    def __repr__(self) -> str:
        return "torch.neuron.explain() counts inside a block: `with torch.neuron.explain() as report: ...`, then print(report)"

    def __enter__(self) -> Report:
        if explain._open is not None:
            raise RuntimeError("torch.neuron.explain() is already counting; blocks do not nest. Leave the outer block first.")
        explain._open = self
        self._before = _C._counters()
        self._compiled_before = _compiled_until_now()
        _C._explain_begin(self._sites)
        if self._watch is not None:
            self._watch.__enter__()
        return self._report

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        explain._open = None
        if self._watch is not None:
            self._watch.__exit__(exc_type, exc, tb)
            self._report.readiness = self._watch.report
        self._report._counters = {**_between(self._before, _C._explain_end()), "compile": _compiled_since(self._compiled_before)}
        if self._watch is not None:
            self._watch.add_syncs(self._report._counters["syncs"])


def _compiled_until_now() -> Any:
    """None while nothing has been compiled; looking must not import Dynamo."""
    if "torch_neuronx.compile.registry" not in sys.modules:
        return None
    from torch_neuronx.compile import report

    return report.snapshot()


def _compiled_since(before: Any) -> dict[str, Any]:
    if "torch_neuronx.compile.registry" not in sys.modules:
        return copy.deepcopy(_NOTHING["compile"])
    from torch_neuronx.compile import report

    return report.between(before or (0.0, {}))


_NO_PROGRAMS = {"launches": 0, "calls": 0, "fused_calls": 0, "unwritten_bytes": 0}
_NOTHING: dict[str, Any] = {
    "ops": {},
    "misses": [],
    "syncs": [],
    "fallbacks": [],
    "bytes": {"h2d": 0, "d2h": 0, "d2d": 0},
    "launches": 0,
    "host_launches": 0,
    "compile": {"graphs": [], "recompiles": []},
    "compiled": _NO_PROGRAMS,
    "windows": _NO_PROGRAMS,
    "closed_windows": 0,
    "window_kernels": 0,
}

# What the process had counted when clear_op_tracking() was called last.
_executed_before: dict[str, int] = {}
_fallbacks_before: dict[str, int] = {}


def _executed() -> dict[str, int]:
    return {name: op["calls"] for name, op in _C._counters()["ops"].items()}


def _fallen_back() -> dict[str, int]:
    return _C._counters()["fallback_ops"]


def _names_since(now: dict[str, int], before: dict[str, int]) -> list[str]:
    return sorted(name for name, calls in now.items() if calls > before.get(name, 0))


def get_executed_ops() -> list[str]:
    """Operators that ran on the device since :func:`clear_op_tracking`, sorted by name."""
    return _names_since(_executed(), _executed_before)


def get_fallback_ops() -> list[str]:
    """Operators that ran on the host instead since :func:`clear_op_tracking`, sorted by name."""
    return _names_since(_fallen_back(), _fallbacks_before)


def clear_op_tracking() -> None:
    """Starts :func:`get_executed_ops` and :func:`get_fallback_ops` anew."""
    global _executed_before, _fallbacks_before
    _executed_before, _fallbacks_before = _executed(), _fallen_back()
