"""What ``torch.neuron.explain()`` says of compiled graphs: which ran, where they were cut and why, which Program was missing and why, what
Dynamo compiled again and why.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch._dynamo.utils import get_compilation_metrics

from torch_neuronx.compile import registry

Snapshot = dict[int, dict[str, Any]]


def snapshot() -> tuple[float, Snapshot]:
    """The time in seconds, and the counts of each graph that is alive."""
    return time.time(), {code.number: _counts(code) for code in registry.graphs()}


def _counts(code: Any) -> dict[str, Any]:
    stats = [graph.stats() for graph in code.graphs.values() if hasattr(graph, "stats")]
    return {
        "name": code.name,
        "parts": len(code.parts),
        "programs": sum(kind.is_program for kind in code.parts.values()),
        "cuts": dict(code.cuts),
        "runs": code.runs,
        "replays": sum(one["replays"] for one in stats),
        "misses": [reason for one in stats for reason in one["miss_reasons"]],
        "node_by_node": dict(sum((Counter(one["fallback_reasons"]) for one in stats), Counter())),
        "kernels": sum(one["kernels"] for one in stats),
        "groups": sum(one["groups"] for one in stats),
        "fused_calls": sum(one["fused_calls"] for one in stats),
        "bucketed": _counted(code, "bucketed"),
        "exact": _counted(code, "stayed_exact"),
    }


def _counted(code: Any, what: str) -> dict[str, int]:
    """What the parts of a graph that have symbolic sizes say of ``torch_neuronx.buckets()``."""
    found: Counter[str] = Counter()
    for graph in code.graphs.values():
        found.update(getattr(graph, what, {}))
    return dict(found)


def between(before: tuple[float, Snapshot]) -> dict[str, Any]:
    """What was compiled and what ran since ``before``.

    ``graphs``: list of ``{"name", "new", "parts", "programs", "cuts", "runs", "replays", "misses", "node_by_node", "kernels", "groups",
    "fused_calls", "bucketed", "exact"}``, the last two ``{what: runs}``; ``recompiles``: list of
    ``{"function", "reason"}``, one for each time that Dynamo compiled a function again.
    """
    start, earlier = before
    graphs = []
    for number, now in snapshot()[1].items():
        then = earlier.get(number)
        used = _since(now, then or {})
        if then is None or used["runs"]:
            graphs.append({**used, "new": then is None})
    return {"graphs": graphs, "recompiles": _recompiles(start)}


def _since(now: dict[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    used = dict(now)
    for name in ("runs", "replays"):
        used[name] = now[name] - then.get(name, 0)
    used["misses"] = now["misses"][len(then.get("misses", ())) :]
    for name in ("node_by_node", "bucketed", "exact"):
        used[name] = dict(Counter(now[name]) - Counter(then.get(name, {})))
    return used


def _recompiles(start: float) -> list[dict[str, str]]:
    found = []
    for metrics in get_compilation_metrics():
        if metrics.recompile_reason and (metrics.start_time_us or 0) >= start * 1e6:
            function = f"{metrics.co_name} ({metrics.co_filename}:{metrics.co_firstlineno})"
            found.append({"function": function, "reason": metrics.recompile_reason})
    return found


def lines(compiled: dict[str, Any]) -> list[tuple[str, list[tuple[int, str]]]]:
    """Titles and counted lines for the text report."""
    graphs = compiled["graphs"]
    return [
        ("compiled graphs", [(graph["runs"], _line(graph)) for graph in sorted(graphs, key=lambda graph: -graph["runs"])]),
        ("cuts between Programs", _added(graph["cuts"] for graph in graphs)),
        ("Programs recorded", _added(Counter(f"{graph['name']}: {reason}" for reason in graph["misses"]) for graph in graphs)),
        ("sizes in buckets", _added(Counter({f"{graph['name']}: {size}": n for size, n in graph["bucketed"].items()}) for graph in graphs)),
        ("sizes not in buckets", _added(Counter({f"{graph['name']}: {why}": n for why, n in graph["exact"].items()}) for graph in graphs)),
        ("parts run node by node", _added(graph["node_by_node"] for graph in graphs)),
        ("recompiled by Dynamo", _added([Counter(f"{item['function']}: {item['reason']}" for item in compiled["recompiles"])])),
    ]


def _line(graph: dict[str, Any]) -> str:
    new = "new; " if graph["new"] else ""
    fused = f", {graph['fused_calls']} calls fused in {graph['groups']} groups" if graph["groups"] else ""
    return f"{graph['name']}: {new}{graph['programs']} of {graph['parts']} parts are Programs, {graph['replays']} replays{fused}"


def _added(counts: Any) -> list[tuple[int, str]]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return [(count, text) for text, count in total.most_common()]
