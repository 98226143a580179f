"""Would this run on a chip? Judges what ran on the emulated device by what Trainium and its compiler can do.

``python -m torch_neuronx.readiness script.py --target trn2`` judges a script, ``torch.neuron.explain(target="trn2")`` a block of code,
and ``TORCH_NEURONX_STRICT=trn2`` refuses in eager what would not run there. The judge is the lowering table: each kind of call is lowered,
as it would be for the chip. Nothing here has been compared with a chip.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

import torch

TARGETS = ("trn1", "trn2", "trn3")
# Bytes of HBM behind a logical core in the default configuration, from the hardware documentation.
HBM = {"trn1": 16 << 30, "trn2": 24 << 30, "trn3": 36 << 30}

_REMEDIES = (
    ("shape of its result depends on data", "use a form of fixed size: torch.where, masked_fill, topk, nonzero_static"),
    ("a mask selects", "use torch.where or masked_fill"),
    ("host needs its value", "keep it on the device (torch.where), or ask for it once in many steps"),
    ("no sparse tensors", "use dense tensors, or gather and scatter"),
    ("no nested tensors", "pad to one length"),
    ("no quantized tensors", "use fp8 with torch._scaled_mm"),
    ("complex", "use complex64"),
    ("float64", "use float32"),
)


@dataclass(frozen=True)
class Finding:
    """Calls that the chip would not run as they are. ``kind``: ``fallback`` (runs on the host) or ``dtype``."""

    kind: str
    op: str
    reason: str
    remedy: str
    count: int
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Judgement:
    """Of one kind of call. ``module``: fingerprint of its HLO, None when it does not lower; ``refused``: dtypes that the chip lacks."""

    module: str | None
    reason: str
    refused: tuple[str, ...]


def judge(recorded: Any, target: str) -> Judgement:
    """Lowers one recorded call (recorder.py) for ``target``."""
    from torch_neuronx.lowering import NotLowered, lower
    from torch_neuronx.lowering.dtypes import rule
    from torch_neuronx.lowering.hlo import fingerprint

    rules = {str(dtype): rule(dtype, target) for dtype in recorded.dtypes}
    refused = tuple(item.note for item in rules.values() if item.verdict == "refused" or item.instead == "float32")
    if recorded.program is None:
        return Judgement(None, "the chip has no sparse tensors, no nested tensors and no quantized tensors", refused)
    try:
        return Judgement(fingerprint(lower(recorded.program, target).hlo()), "", refused)
    except NotLowered as error:
        inner = "" if error.op == recorded.op.name() else f"{error.op}: "
        return Judgement(None, inner + error.reason, refused)


def remedy(reason: str) -> str:
    """What to change, for a reason."""
    return next((text for part, text in _REMEDIES if part in reason), "move it to the host explicitly, or write it in other operators")


@dataclass
class Report:
    """What a chip would make of a block of code."""

    target: str
    calls: int = 0
    lowered: int = 0  # of them
    kinds: int = 0  # different calls
    neffs: int = 0  # programs to compile
    findings: list[Finding] = field(default_factory=list)
    dtype_notes: dict[str, int] = field(default_factory=dict)  # what the chip changes -> calls
    syncs: int = 0  # times that the host waited
    sync_sites: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    limit_bytes: int = 0

    @property
    def ready(self) -> bool:
        """Everything would run on the chip, and fit."""
        return not self.findings and self.peak_bytes <= self.limit_bytes

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ready": self.ready}

    def json(self) -> str:
        return json.dumps(self.as_dict(), indent=1)

    def __str__(self) -> str:
        memory = f"{self.peak_bytes / 2**30:.2f} of {self.limit_bytes / 2**30:.0f} GiB HBM of a logical core"
        verdict = "ready" if self.ready else "not ready"
        lines = [
            f"readiness for {self.target}: {verdict} (judged by the compiler's documentation, not on a chip)",
            f"  calls            {self.lowered} of {self.calls} would run on the chip, {self.kinds} kinds",
            f"  compilations     {self.neffs} NEFFs in eager",
            f"  host waits       {self.syncs}",
            f"  memory           {memory}",
        ]
        for finding in self.findings:
            lines.append(f"{finding.count:>6} x {finding.op}: {finding.reason}")
            lines += [f"         at {site}" for site in finding.sites[:3]]
            lines.append(f"         change: {finding.remedy}")
        lines += [f"{count:>6} x note: {note}" for note, count in self.dtype_notes.items()]
        lines += [f"{count:>6} x host wait at {site}" for site, count in list(self.sync_sites.items())[:10]]
        if self.peak_bytes > self.limit_bytes:
            lines.append("change: less memory; a smaller batch, activation checkpointing, or sharding over cores")
        return "\n".join(lines)

    def html(self) -> str:
        """One self-contained page."""
        from html import escape

        rows = "".join(
            f"<tr><td>{finding.count}</td><td><code>{escape(finding.op)}</code></td><td>{escape(finding.reason)}</td>"
            f"<td>{escape(finding.remedy)}</td><td>{'<br>'.join(map(escape, finding.sites[:3]))}</td></tr>"
            for finding in self.findings
        )
        style = "body{font:15px sans-serif;margin:2em;max-width:70em}"
        style += "table{border-collapse:collapse}td,th{padding:.3em .7em;border:1px solid #bbb}"
        head = "<tr><th>calls</th><th>operator</th><th>why not</th><th>change</th><th>where</th></tr>"
        return (
            f"<!doctype html><meta charset=utf-8><title>Readiness for {self.target}</title><style>{style}</style>"
            f"<h1>Readiness for {self.target}: {'ready' if self.ready else 'not ready'}</h1><pre>{escape(str(self))}</pre>"
            f"<table>{head}{rows}</table>"
        )


class Watch:
    """Judges the calls of a ``with`` block; ``report`` is complete when it has ended.

    Sees eager calls, their backward pass included. What runs inside ``torch.compile`` is not seen.
    """

    def __init__(self, target: str) -> None:
        if target not in TARGETS:
            raise ValueError(f'"{target}" is no target: {", ".join(TARGETS)}')
        from torch_neuronx.lowering.recorder import Recorder

        self.report = Report(target, limit_bytes=HBM[target])
        self.recorder = Recorder()

    def __enter__(self) -> Watch:
        torch.neuron.reset_peak_memory_stats()  # type: ignore[attr-defined]
        self.recorder.__enter__()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.recorder.__exit__(exc_type, exc, tb)
        self.report.peak_bytes = torch.neuron.max_memory_allocated()  # type: ignore[attr-defined]
        if exc is None:
            self._judge()

    def _judge(self) -> None:
        from torch_neuronx.lowering.dtypes import rule

        report, modules, found = self.report, set(), []
        notes: Counter[str] = Counter()
        for recorded in self.recorder.calls.values():
            report.calls += recorded.count
            report.kinds += 1
            judgement = judge(recorded, report.target)
            sites = tuple(sorted(recorded.sites, key=lambda site: -recorded.sites[site]))
            name = recorded.op.name()
            if judgement.module is None:
                found.append(Finding("fallback", name, judgement.reason, remedy(judgement.reason), recorded.count, sites))
            elif judgement.refused:
                reason = "; ".join(judgement.refused)
                found.append(Finding("dtype", name, reason, remedy(reason), recorded.count, sites))
            else:
                report.lowered += recorded.count
                modules.add(judgement.module)
            for dtype in recorded.dtypes:
                if rule(dtype, report.target).instead in ("int32", "pairs of float32"):
                    notes[rule(dtype, report.target).note] += recorded.count
        report.neffs = len(modules)
        report.dtype_notes = dict(notes)
        report.findings = _merged(found)

    def add_syncs(self, syncs: list[dict[str, Any]]) -> None:
        """Host waits, as ``torch.neuron.explain()`` lists them."""
        self.report.syncs = len(syncs)
        self.report.sync_sites = dict(Counter(f"{item.get('site') or '?'} ({item['why']})" for item in syncs).most_common())


def _merged(findings: list[Finding]) -> list[Finding]:
    """One finding an operator and reason, the most frequent first."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for item in findings:
        groups.setdefault((item.kind, item.op, item.reason), []).append(item)
    merged = [
        Finding(
            *key, items[0].remedy, sum(item.count for item in items), tuple(dict.fromkeys(site for item in items for site in item.sites))
        )
        for key, items in groups.items()
    ]
    return sorted(merged, key=lambda item: -item.count)


# ---- TORCH_NEURONX_STRICT ----


def refuse(recorded: Any, target: str) -> None:
    """Raises for a call that the chip would not run as it is; called at each new kind of call."""
    judgement = judge(recorded, target)
    reason = judgement.reason if judgement.module is None else "; ".join(judgement.refused)
    if reason:
        raise RuntimeError(
            f"TORCH_NEURONX_STRICT={target}: {recorded.op.name()} would not run on the chip: {reason}. Change: {remedy(reason)}."
        )


def enforce(target: str) -> None:
    """Refuses from now on, on this thread and in its backward passes, what ``target`` would not run (ValueError: no such target)."""
    if target not in TARGETS:
        raise ValueError(f'TORCH_NEURONX_STRICT="{target}" is not understood: accepted values are {", ".join(TARGETS)}')
    from torch_neuronx.lowering.recorder import Recorder

    Recorder(lambda recorded: refuse(recorded, target)).__enter__()


# ---- command line ----


def judge_script(script: str, arguments: list[str], target: str) -> Report:
    """Runs ``script`` as ``__main__`` on the emulated device and judges it."""
    import runpy
    import sys

    before = sys.argv
    sys.argv = [script, *arguments]
    watch = Watch(target)
    try:
        with torch.neuron.explain() as explained, watch:  # type: ignore[attr-defined]
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = before
    watch.add_syncs(explained.as_dict()["syncs"])
    return watch.report


def main(arguments: list[str] | None = None) -> int:
    import argparse
    import sys

    from torch_neuronx.command_line import require_script, split_arguments

    parser = argparse.ArgumentParser(prog="python -m torch_neuronx.readiness", description="Would this script run on a Trainium chip?")
    parser.add_argument("--target", choices=TARGETS, default="trn2")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the report as one HTML page")
    parser.add_argument("script")
    parser.epilog = "What follows -- is the script's."
    ours, theirs = split_arguments(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(ours)
    require_script(parser, options.script)
    report = judge_script(options.script, theirs, options.target)
    for path, text in ((options.json, report.json), (options.html, report.html)):
        if path:
            with open(path, "w") as file:
                file.write(text())
    print(report)
    return 0 if report.ready else 1


if __name__ == "__main__":
    import sys

    sys.exit(main())
