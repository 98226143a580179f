"""What every test shares: the environment that makes the backend strict, set before torch is imported."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# Here nothing may run on the host unnoticed, and every kernel's real metadata is compared with what the cache promised.
os.environ.setdefault("TORCH_NEURONX_FALLBACK", "error")
os.environ.setdefault("TORCH_NEURONX_CHECK_META", "1")

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("default")


@pytest.fixture
def run_python() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs a script in a fresh interpreter: ``run_python(code, *argv, timeout=60, **environment)``; its output is captured as text.

    An environment value of None removes the variable. The exit code is the caller's to check.
    """

    def run(code: str, *argv: str, timeout: float = 60, **environment: str | None) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, **environment}
        return subprocess.run(
            [sys.executable, "-c", code, *argv],
            env={name: value for name, value in env.items() if value is not None},
            cwd=ROOT,
            timeout=timeout,
            capture_output=True,
            text=True,
        )

    return run
