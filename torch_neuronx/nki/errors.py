"""What a kernel is refused with."""

from __future__ import annotations


class NkiValidationError(AssertionError):
    """A kernel breaks a rule of the language or of the hardware. The text starts with the kernel's ``file:line`` and names the rule."""


class NkiWarning(UserWarning):
    """A rule was broken under ``TORCH_NEURONX_NKI_CHECKS=warn``."""
