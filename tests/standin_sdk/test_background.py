"""TORCH_NEURONX_COMPILE=background on the Trainium target, against the stand-in SDK."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.standin_sdk.conftest import Run

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def in_background(on_chip: Run, tmp_path: Path) -> Run:
    """``on_chip`` with an empty cache, and compilers that take ``seconds``; many may run, since they sleep."""

    def run(where: str, *argv: str, seconds: float = 4, **environment: Any) -> Any:
        settings = {
            "TORCH_NEURONX_COMPILE": "background",
            "TORCH_NEURONX_FALLBACK": "warn",
            "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "neffs"),
            "TORCH_NEURONX_COMPILE_JOBS": "8",
            "STANDIN_CC_SLEEP": str(seconds),
        }
        return on_chip(f"background:{where}", *argv, **settings | environment)

    return run


def test_swap(in_background: Run) -> None:
    in_background("swap", seconds=2)


def test_refused(in_background: Run) -> None:
    in_background("refused", seconds=2, STANDIN_CC_EXIT="3")


def test_contradiction(in_background: Run) -> None:
    in_background("contradiction", TORCH_NEURONX_FALLBACK="error")


def test_exit_waits_for_no_compiler(in_background: Run, tmp_path: Path) -> None:
    start = time.monotonic()
    done = in_background("leave", seconds=300)
    assert float(done.stdout) == pytest.approx(4 * 0.00247875, rel=1e-4)
    assert time.monotonic() - start < 200
    assert not list((tmp_path / "neffs").glob("neuronxcc-*/*")), "a workspace was left behind"
    assert not _processes_in(tmp_path), "a compiler was left behind"


def _processes_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = os.readlink(process)
        except OSError:  # it has ended, or is another user's
            continue
        if where.startswith(str(folder)):
            found.append(f"{process} {where}")
    return found


@pytest.mark.full
@pytest.mark.parametrize("runtime", ["2.34", "2.30"])
def test_eager(in_background: Run, runtime: str) -> None:
    in_background("eager", runtime=runtime, timeout=500)
    in_background("warm", runtime=runtime)


@pytest.mark.full
def test_graph(in_background: Run) -> None:
    in_background("graph", timeout=500)


@pytest.mark.full
def test_shapes(in_background: Run) -> None:
    in_background("shapes")


@pytest.mark.full
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_training(on_chip: Run, tmp_path: Path, mode: str) -> None:
    """Losses are the CPU's although programs move from the host to the chip meanwhile."""
    settings = {
        "TORCH_NEURONX_COMPILE": "background",
        "TORCH_NEURONX_FALLBACK": "allow",
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "neffs"),
    }
    on_chip("training:train", "GPT", mode, "12", timeout=500, **settings)


@pytest.mark.full
def test_windows(in_background: Run) -> None:
    in_background("windows", TORCH_NEURONX_ADAPTIVE_EAGER="1")
