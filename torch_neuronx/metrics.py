"""Counters of ``torch.compile(backend="neuron")``, under the names that AWS's torch-neuronx gives them."""

from __future__ import annotations

from collections import Counter

_NAMES = ("compiled_graphs", "graphs_with_collectives")
_counts: Counter[str] = Counter()


def count(name: str, by: int = 1) -> None:
    """Adds to a counter; called where graphs are compiled."""
    _counts[name] += by


def get_dynamo_metrics() -> dict[str, int]:
    """How often each thing happened since the process started or :func:`reset_dynamo_metrics` was called."""
    return {name: _counts[name] for name in (*_NAMES, *(_counts.keys() - set(_NAMES)))}


def reset_dynamo_metrics() -> None:
    """Sets all counters to 0."""
    _counts.clear()
