"""Eight processes, each with a core of its own, meet the same graph at once: it is compiled once, whoever is killed meanwhile."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.standin_sdk.conftest import environment_of
from torch_neuronx.compiler import Cache
from torch_neuronx.compiler.options import cache_from_environment

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

Process = subprocess.Popen[str]


class Ranks:
    """Processes that run training.graph(), on a cache that was empty."""

    def __init__(self, sdk: Path, folder: Path) -> None:
        self.sdk, self.folder, self.calls = sdk, folder, folder / "calls"
        self.cache = Cache(cache_from_environment({"TORCH_NEURONX_NEFF_CACHE_DIR": str(folder / "neffs")}))
        self.processes: list[Process] = []
        self.killed = 0

    def start(self, count: int) -> None:
        code = "from tests.standin_sdk.training import graph; graph()"
        for core in range(count):
            env = environment_of(self.sdk, "trn2", "2.34", self.folder / "neffs", self.folder) | {
                "NEURON_LOGICAL_NC_CONFIG": "1",  # a trn2 chip is eight cores then
                "NEURON_RT_VISIBLE_CORES": str(core),
                "STANDIN_CC_CALLS": str(self.calls),
                "STANDIN_CC_SLEEP": "3",
            }
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            self.processes.append(subprocess.Popen([sys.executable, "-c", code], env=env, cwd=ROOT, **pipes))

    def compilers(self) -> list[int]:
        """Processes of neuronx-cc that were started, in their order."""
        return [int(line.split()[0]) for line in self.calls.read_text().splitlines()] if self.calls.exists() else []

    def wait_for_a_compiler(self) -> Process:
        """Gives the process that has started one."""
        end = time.monotonic() + 300
        while not (found := self.compilers()):
            assert time.monotonic() < end, "nobody compiles"
            time.sleep(0.05)
        parent = int(Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()[1])
        return next(process for process in self.processes if process.pid == parent)

    def kill(self, process: Process) -> None:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        self.processes.remove(process)
        self.killed += 1

    def end(self) -> list[dict[str, Any]]:
        """What the others have printed, once all have ended well."""
        told = []
        for process in self.processes:
            out, err = process.communicate(timeout=600)
            assert process.returncode == 0, err[-4000:]
            told.append(json.loads(out.splitlines()[-1]))
        self.processes.clear()
        return told


@pytest.mark.parametrize("victims", ["none", "the one that compiles", "one that waits", "some at any moment"])
def test_one_compilation(sdk: Path, tmp_path: Path, victims: str) -> None:
    ranks = Ranks(sdk, tmp_path)
    ranks.start(8)
    holder = ranks.wait_for_a_compiler()
    if victims == "the one that compiles":
        ranks.kill(holder)
    elif victims == "one that waits":
        ranks.kill(next(process for process in ranks.processes if process is not holder))
    elif victims == "some at any moment":
        seed = random.SystemRandom().randrange(1 << 32)
        print("seed", seed)
        chosen = random.Random(seed)
        for _ in range(3):
            time.sleep(chosen.random() * 4)
            ranks.kill(chosen.choice(ranks.processes))
    told = ranks.end()
    assert len(told) == 8 - ranks.killed
    assert all(one["result"] == told[0]["result"] and one["failures"] == 0 for one in told)
    compiled = len(ranks.compilers())
    if victims == "the one that compiles":
        assert compiled == 2  # the killed one's, and the only other
    elif victims == "some at any moment":
        assert 1 <= compiled <= 1 + ranks.killed
    else:
        assert compiled == 1 == sum(one["compiles"] for one in told)
        assert sum(one["hits"] for one in told) == len(told) - 1
    assert [entry.state for entry in ranks.cache.entries(check=True)] == ["ok"]
    ranks.start(1)  # nothing of the dead stands in the way of who comes later
    (last,) = ranks.end()
    assert (last["compiles"], last["hits"], last["result"]) == (0, 1, told[0]["result"])
    assert len(ranks.compilers()) == compiled
