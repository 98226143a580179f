"""Runs scripts on the Trainium target against the stand-in SDK. Nothing here says anything about a chip: see docs/dev/trainium.md."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.standin_sdk.install import FOLDER, install

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def sdk() -> Path:
    """The stand-in SDK's folder, built where it is out of date."""
    make = ["make", "--no-print-directory", "-s", "standin-nrt"]
    subprocess.run(make, cwd=ROOT, check=True, timeout=900, stdout=subprocess.DEVNULL)
    install(FOLDER)
    return FOLDER


@pytest.fixture(scope="session")
def neffs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of compiled programs that the tests share."""
    return tmp_path_factory.mktemp("neffs")


@pytest.fixture
def on_chip(sdk: Path, neffs: Path, tmp_path: Path) -> Run:
    """``on_chip("module:function", *argv, device="trn2", runtime="2.34", timeout=240, **environment)``.

    Calls the function of ``tests.standin_sdk.<module>`` in a process whose target is the stand-in runtime, and checks that it ended well
    (``check=False``: does not). ``runtime``: "2.30" has the other form of the asynchronous functions.
    """

    def run(
        where: str,
        *argv: str,
        device: str = "trn2",
        runtime: str = "2.34",
        timeout: float = 240,
        check: bool = True,
        **environment: str,
    ) -> "subprocess.CompletedProcess[str]":
        module, function = where.split(":")
        code = f"import sys; from tests.standin_sdk.{module} import {function}; {function}(*sys.argv[1:])"
        env = environment_of(sdk, device, runtime, neffs, tmp_path) | environment
        done = subprocess.run(
            [sys.executable, "-c", code, *argv], env=env, cwd=ROOT, timeout=timeout, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{where} ended with {done.returncode}\n{done.stdout}\n{done.stderr[-8000:]}"
        return done

    return run


def environment_of(sdk: Path, device: str, runtime: str, neffs: Path, own: Path) -> dict[str, str]:
    """Of a process that uses the stand-in SDK; ``own``: a folder for its locks on cores."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "STANDIN_"))}
    return kept | {
        "PATH": f"{sdk / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(sdk / f"runtime-{runtime}"),
        "STANDIN_SDK_PYTHON": sys.executable,
        "STANDIN_SDK_EXECUTOR": str(ROOT / "tests" / "standin_sdk" / "executor.py"),
        "STANDIN_NRT_DEVICE": device,
        "STANDIN_NRT_DIR": str(own / "cores"),
        "TORCH_NEURONX_TARGET": "trainium",
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(neffs),
    }
