"""PyTorch's own suite of ``torch.distributed`` (upstream.py): four tests of it, and in the full run all."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> tuple[int, int]:
    """How many tests the CPU passes, and how many of these ``neuron`` does not."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.upstream", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    found = re.search(r"the CPU passes (\d+); neuron does not pass (\d+)", done.stdout)
    assert found, done.stdout
    return int(found[1]), int(found[2])


@pytest.mark.timeout(600)
def test_coalesced_gathers() -> None:
    assert run("--match", "all_gather_coalesced") == (4, 0)


@pytest.mark.full
@pytest.mark.timeout(3700)
def test_everything() -> None:
    passed, worse = run()  # those that are worse have a row each
    assert passed > 70 and worse < passed / 50  # of 285, those that use the device
