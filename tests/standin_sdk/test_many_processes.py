"""Eight processes, each with a core of its own, train the same model: every program is compiled once, whoever dies meanwhile."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.standin_sdk.conftest import environment_of

_CODE = "import sys; from tests.standin_sdk.training import train; train(*sys.argv[1:])"


def _start(sdk: Path, own: Path, count: int, mode: str) -> "list[subprocess.Popen[str]]":
    started = []
    for core in range(count):
        env = environment_of(sdk, "trn2", "2.34", own / "neffs", own) | {
            "NEURON_LOGICAL_NC_CONFIG": "1",
            "NEURON_RT_VISIBLE_CORES": str(core),
            "STANDIN_CC_CALLS": str(own / "calls"),
            "STANDIN_CC_SLEEP": "1",
        }
        command = [sys.executable, "-c", _CODE, "GPT", mode, "2"]
        started.append(
            subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        )
    return started


def _told(process: "subprocess.Popen[str]") -> dict[str, list[float]]:
    out, err = process.communicate(timeout=1500)
    assert process.returncode == 0, err[-4000:]
    found: dict[str, list[float]] = json.loads(out.splitlines()[-1])
    return found


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("killed", [0, 1])
def test_one_compilation_each(sdk: Path, tmp_path: Path, killed: int) -> None:
    processes = _start(sdk, tmp_path, 8, "compiled")
    calls = tmp_path / "calls"
    if killed:
        while not calls.exists():
            time.sleep(0.1)
        time.sleep(random.random() * 5)
        victim = processes.pop(random.randrange(8))
        os.kill(victim.pid, signal.SIGKILL)
        victim.communicate()
    told = [_told(process) for process in processes]
    assert all(one["neuron"] == told[0]["neuron"] for one in told)
    entries = list((tmp_path / "neffs").glob("neuronxcc-*/MODULE_*"))
    compiled = len(calls.read_text().splitlines())
    assert len(entries) <= compiled <= len(entries) + killed
    assert not list((tmp_path / "neffs").glob("neuronxcc-*/building-*")) or killed
