"""What the commands (``python -m torch_neuronx.readiness``, ``... .compiler``) share."""

from __future__ import annotations

import argparse
import os


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first ``--``, and after it: argparse treats it differently from one Python to the next."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def require_script(parser: argparse.ArgumentParser, script: str) -> None:
    """Ends the command with one sentence when there is no such script; ``runpy`` would say so in a traceback of its own."""
    if not os.path.exists(script):
        parser.error(f'there is no script "{script}" (from {os.getcwd()})')
