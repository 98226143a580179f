"""What the commands (``python -m torch_neuronx.readiness``, ``... .compiler``) share."""

from __future__ import annotations


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first ``--``, and after it: argparse treats it differently from one Python to the next."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]
