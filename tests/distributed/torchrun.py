"""Scripts under ``torchrun``, as its users start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def torchrun(*arguments: str | Path, timeout: float = 300, **environment: str) -> list[str]:
    """Runs ``torchrun --standalone ARGUMENTS`` and returns what each rank printed in the last attempt, by rank.

    Each rank prints to a file of its own: in a pipe that they share, the parts of two lines mix.
    """
    with tempfile.TemporaryDirectory() as logs:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--log-dir={logs}", "--redirects=3", *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        attempts = sorted(Path(logs).glob("*/attempt_*"), key=lambda path: int(re.findall(r"\d+$", path.name)[0]))
        ranks = sorted(attempts[-1].glob("*"), key=lambda path: int(path.name)) if attempts else []
        errors = [(rank / "stderr.log").read_text() for rank in ranks]
        assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *errors])
        return [(rank / "stdout.log").read_text() for rank in ranks]
