"""``python -m tests.standin_sdk.install [folder]``: writes ``bin/neuronx-cc`` and ``env.sh``, which puts it on PATH and the folder of the
stand-in ``libnrt.so.1`` (``make standin-sdk`` builds it) into LD_LIBRARY_PATH.

STANDIN_RUNTIME=2.30 in the environment of env.sh chooses the runtime with the older form of the asynchronous functions.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "standin_sdk"  # where the libraries are built


def install(folder: Path) -> Path:
    """The folder's ``bin``."""
    tools = folder / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    script = tools / "neuronx-cc"
    lines = ["#!/bin/sh", f'export PYTHONPATH="{ROOT}" TORCH_DEVICE_BACKEND_AUTOLOAD=0']
    lines.append(f'exec "{sys.executable}" -m tests.standin_sdk.neuronx_cc "$@"')
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    (folder / "env.sh").write_text(
        "# The stand-in SDK: nothing here is AWS's.\n"
        f'export PATH="{tools}:$PATH"\n'
        f'export LD_LIBRARY_PATH="{folder.resolve()}/runtime-${{STANDIN_RUNTIME:-2.34}}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n'
        f'export STANDIN_SDK_PYTHON="{sys.executable}" STANDIN_SDK_EXECUTOR="{ROOT}/tests/standin_sdk/executor.py"\n'
    )
    return tools


if __name__ == "__main__":
    print(install(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
