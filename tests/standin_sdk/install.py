"""``python -m tests.standin_sdk.install [folder]``: writes ``bin/neuronx-cc`` and ``env.sh``, which puts it on PATH."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def install(folder: Path) -> Path:
    """The folder's ``bin``."""
    tools = folder / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    script = tools / "neuronx-cc"
    lines = ["#!/bin/sh", f'export PYTHONPATH="{ROOT}" TORCH_DEVICE_BACKEND_AUTOLOAD=0']
    lines.append(f'exec "{sys.executable}" -m tests.standin_sdk.neuronx_cc "$@"')
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    (folder / "env.sh").write_text(f'# The stand-in SDK: nothing here is AWS\'s.\nexport PATH="{tools}:$PATH"\n')
    return tools


if __name__ == "__main__":
    print(install(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "standin_sdk"))
