"""The ``mode`` and ``options`` of ``torch.compile(backend="neuron")``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A replay already runs without Python, and tile functions need no tuning, so the modes do not differ (yet).
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Option:
    """One key of ``options``."""

    kind: type
    meaning: str


OPTIONS = {
    "model_name": Option(str, "name of the graphs in torch.neuron.explain() and in error messages"),
    "fallback_execution": Option(bool, "let operators without a kernel run on the host, with TORCH_NEURONX_FALLBACK=warn's warning"),
    "dynamic": Option(bool, "accepted for scripts written for AWS's torch-neuronx; dynamic= of torch.compile decides"),
}


@dataclass(frozen=True)
class Settings:
    """Checked options."""

    model_name: str = ""
    fallback_execution: bool | None = None  # None: as TORCH_NEURONX_FALLBACK says, which is "error" when it is not set


def parse(mode: str | None, options: Mapping[str, Any] | None) -> Settings:
    """Checks ``mode`` and ``options``, which stay as they are. Raises ValueError or TypeError naming what is accepted."""
    if mode is not None and mode not in MODES:
        raise ValueError(f'torch.compile(backend="neuron") has no mode {mode!r}; there are {", ".join(MODES)}')
    given = dict(options or {})
    for name, value in given.items():
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f'torch.compile(backend="neuron") has no option {name!r}; there are {", ".join(OPTIONS)}.{hint}')
        kind = OPTIONS[name].kind
        if not isinstance(value, kind):
            raise TypeError(f"option {name!r} takes a {kind.__name__}, but got {value!r}")
    given.pop("dynamic", None)
    return Settings(**given)
