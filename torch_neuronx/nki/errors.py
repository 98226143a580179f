"""What a kernel is refused with."""

from __future__ import annotations

import difflib
import sys
from types import ModuleType


class NkiValidationError(AssertionError):
    """A kernel breaks a rule of the language or of the hardware. The text starts with the kernel's ``file:line`` and names the rule."""


class NkiWarning(UserWarning):
    """A rule was broken under ``TORCH_NEURONX_NKI_CHECKS=warn``."""


def unknown_name(module: str, name: str, *others: str) -> AttributeError:
    """What a kernel's author is told of a name that ``module`` does not have: which of ``others`` has it, or what it resembles."""
    from torch_neuronx.nki.trace import where

    def short(one: str) -> str:
        return one.removeprefix("torch_neuronx.")

    text = f"{short(module)} has no {name!r}"
    if not name.startswith("_"):  # else Python asks, for itself
        elsewhere = [short(other) for other in others if other in sys.modules and name in vars(sys.modules[other])]
        public = [one for one, value in vars(sys.modules[module]).items() if not one.startswith("_") and not isinstance(value, ModuleType)]
        close = difflib.get_close_matches(name, public, n=2)
        if elsewhere:
            text += f"; {' and '.join(elsewhere)} has"
        elif close:
            text += f". Did you mean {' or '.join(close)}?"
        text = f"{where()}{text}"
    return AttributeError(text, name=name, obj=None)  # with an object, Python would add a suggestion of its own
