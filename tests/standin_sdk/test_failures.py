"""Every status of the runtime at every place where users meet it, against the stand-in SDK."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.standin_sdk import failures
from tests.standin_sdk.conftest import Run, environment_of

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(
    ("where", "runtime"),
    [
        ("completion", "2.34"),
        pytest.param("completion", "2.30", marks=pytest.mark.full),
        pytest.param("schedule", "2.34", marks=pytest.mark.full),
        pytest.param("schedule", "2.30", marks=pytest.mark.full),
    ],
)
def test_executions(on_chip: Run, where: str, runtime: str) -> None:
    variable = "STANDIN_NRT_COMPLETION_FAULTS" if where == "completion" else "STANDIN_NRT_FAULTS"
    environment = {variable: failures.execution_rules(where)}
    done = on_chip("failures:executions", where, runtime=runtime, **environment)
    assert done.stdout.strip() == "lost as documented"


def test_loads(on_chip: Run) -> None:
    on_chip("failures:loads", STANDIN_NRT_FAULTS=failures.load_rules())


def test_loads_in_full_memory(on_chip: Run) -> None:
    on_chip("failures:loads_in_full_memory", STANDIN_NRT_FAULTS=failures.LOADS_IN_FULL_MEMORY)


@pytest.mark.parametrize("runtime", ["2.34", pytest.param("2.30", marks=pytest.mark.full)])
def test_copies(on_chip: Run, runtime: str) -> None:
    on_chip("failures:copies", runtime=runtime, STANDIN_NRT_COMPLETION_FAULTS=failures.copy_rules())


def test_out_of_memory(on_chip: Run) -> None:
    on_chip("failures:out_of_memory", STANDIN_NRT_HBM_BYTES=str(256 << 20))


@pytest.mark.full
@pytest.mark.parametrize("runtime", ["2.34", "2.30"])
def test_queue_full(on_chip: Run, runtime: str) -> None:
    on_chip("failures:queue_full", runtime=runtime, STANDIN_NRT_QUEUE_DEPTH="1", STANDIN_NRT_FAULTS="nrta_execute_schedule:5-9=7")


@pytest.mark.full
def test_nan(on_chip: Run) -> None:
    on_chip("failures:nan", NEURON_FAIL_ON_NAN="1")


@pytest.mark.full
def test_cores_belong_to_one_process(on_chip: Run, sdk: Path, neffs: Path, tmp_path: Path) -> None:
    code = "from tests.standin_sdk.failures import hold; hold()"
    env = environment_of(sdk, "trn2", "2.34", neffs, tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        on_chip("failures:taken")
        holder.kill()
    on_chip("eager:convolution")  # a killed process gives its cores back
