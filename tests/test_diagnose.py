"""``python -m torch_neuronx.diagnose``: finds what is wrong without importing torch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torch_neuronx import config, diagnose

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments, cwd=ROOT, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_NEURONX_", "NEURON_", "TORCH_DEVICE_"))}
    command = [sys.executable, "-m", "torch_neuronx.diagnose", *arguments]
    return subprocess.run(command, cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, timeout=180)


def checks(*arguments, **kwargs):
    result = run("--json", *arguments, **kwargs)
    report = json.loads(result.stdout)
    assert result.returncode == (0 if report["ok"] else 1)
    return {check["name"]: check for check in report["checks"]}


def test_a_good_installation():
    result = run()
    assert result.returncode == 0, result.stdout
    assert "Nothing is wrong." in result.stdout and result.stderr == ""
    assert all(check["status"] == "ok" for check in checks().values())


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_torch_is_not_imported(autoload):
    code = """
import sys, runpy
sys.argv = ["diagnose"]
try:
    runpy.run_module("torch_neuronx.diagnose", run_name="__main__")
except SystemExit:
    pass
print(*[name for name in ("torch", "numpy", "jax", "torch_neuronx._C") if name in sys.modules], file=sys.stderr)
"""
    # The words of the command line are what tells the package, so they are those of `python -m`.
    command = [sys.executable, "-X", "importtime", "-m", "torch_neuronx.diagnose"]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}, capture_output=True, text=True
    )
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert "torch_neuronx.config" in imported
    assert not imported & {"torch", "numpy", "jax", "torch_neuronx._C"}
    if autoload == "1":
        result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert result.stderr.strip() == ""


def test_trial_run():
    trial = checks("--load")["trial"]
    assert trial["status"] == "ok" and "emulated" in trial["found"]


def test_trial_run_shows_the_cause():
    found = checks("--load", TORCH_NEURONX_EMULATED_INSTANCE="trn9")
    assert found["trial"]["status"] == "problem" and "trn9" in found["trial"]["found"]


@pytest.mark.parametrize(
    "environment, check, status, words",
    [
        ({"TORCH_NEURONX_FALLBACK": "sometimes"}, "environment", "problem", "error, warn, allow"),
        ({"TORCH_NEURONX_GARD": "1"}, "environment", "note", "TORCH_NEURONX_GUARD"),
        ({"TORCH_NEURONX_LOG_LEVEL": "3"}, "environment", "note", "no effect"),
        ({"NEURON_RT_VISIBLE_CORES": "a-b"}, "environment", "problem", "0-3"),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "autoload", "note", "switched off"),
        ({"TORCH_NEURONX_TARGET": "trainium"}, "chip", "problem", "/dev/neuron0"),
    ],
)
def test_what_the_environment_does(environment, check, status, words):
    found = checks(**environment)[check]
    assert found["status"] == status and words in found["found"]


def test_missing_parts(tmp_path):
    shutil.copytree(ROOT / "torch_neuronx", tmp_path / "torch_neuronx", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # An editable installation's finder comes before the folders of sys.path.
    code = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith('_editable')]"
    (tmp_path / "sitecustomize.py").write_text(code)
    result = run("--json", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    found = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    if found["extension"]["status"] == "ok":
        pytest.fail("the copy was not the package that ran")
    assert result.returncode == 1
    assert "make build" in found["extension"]["remedy"] and found["library"]["status"] == "problem"


def test_torch_of_another_version(monkeypatch):
    monkeypatch.setattr(diagnose.importlib.metadata, "version", lambda name: "2.9.1" if name == "torch" else "1")
    check = diagnose._torch()
    assert check.status == "problem" and "2.13" in check.remedy
    other = diagnose._other_product()
    assert other is not None and other.status == "problem"


def test_wrong_arguments():
    assert run("--nonsense").returncode == 2


GOOD = {
    "TORCH_NEURONX_TARGET": "emulated",
    "TORCH_NEURONX_EMULATED_INSTANCE": "trn3",
    "NEURON_RT_VISIBLE_CORES": "0,2-3",
    "NEURON_RT_NUM_CORES": "2",
    "NEURON_LOGICAL_NC_CONFIG": "1",
    "TORCH_NEURONX_FALLBACK": "allow",
    "TORCH_NEURONX_GUARD": "on",
    "NEURON_LAUNCH_BLOCKING": "TRUE",
    "TORCH_NEURONX_CHECK_META": "0",
    "TORCH_NEURONX_ENABLE_STACK_TRACE": "no",
    "TORCH_NEURONX_HOST_MEMORY_LIMIT": "2G",
    "TORCH_NEURONX_HOST_MEMORY_RESERVE": "512M",
    "TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG": "kMaxSplitSizeBytes=268435456,kMaxNonSplitRoundingBytes=67108864",
    "TORCH_NEURONX_EAGER_CACHE_SIZE": "10",
    "NEURON_EAGER_MODEL_CACHE_SIZE": "10",
    "TORCH_NEURONX_VECTORS": "portable",
    "TORCH_NEURONX_ADAPTIVE_EAGER": "1",
    "TORCH_NEURONX_ENABLE_CONCATENATION": "0",
    "TORCH_NEURONX_QUEUE_SIZE": "4096",
}


# Read elsewhere than when the device is opened.
ELSEWHERE = {
    "TORCH_NEURONX_STRICT": "trn2",
    "TORCH_NEURONX_EXECUTOR": "xla",
    "TORCH_NEURONX_NEFF_CACHE_SIZE": "8G",
    "TORCH_NEURONX_DISABLE_NEFF_CACHE": "1",
    "TORCH_NEURONX_COMPILE_TIMEOUT": "60",
    "TORCH_NEURONX_COMPILE_JOBS": "2",
    "TORCH_NEURONX_COMPILE_PROGRESS": "off",
    "TORCH_NEURONX_EMULATED_LINK_US": "100",
}
# Any text will do.
TEXTS = {"TORCH_NEURONX_NEFF_CACHE_DIR": "neffs", "TORCH_NEURONX_EMULATED_HOST": "first"}


def test_every_variable_has_a_good_value_here():
    every = {**GOOD, **ELSEWHERE, **TEXTS}
    assert every.keys() == {variable.name for variable in config.VARIABLES}
    assert config.check_environment(every) == []


@pytest.mark.parametrize("name", [*GOOD, *ELSEWHERE])
def test_bad_values_are_found(name):
    findings = config.check_environment({**GOOD, name: "nonsense"})
    assert [finding.fatal for finding in findings] == [True]
    assert name in findings[0].text and "nonsense" in findings[0].text and "accepted values are" in findings[0].text


def test_python_and_library_refuse_alike(run_python):
    """The table is the C++ side's documentation, so both must refuse the same values."""
    code = """
import json, os, sys, torch
def refused(name, value):
    pid = os.fork()
    if pid == 0:
        os.environ[name] = value
        try:
            torch.neuron.init()
        except RuntimeError as error:
            os._exit(1 if name in str(error) else 3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps({name: [refused(name, good), refused(name, "nonsense")] for name, good in json.loads(sys.argv[1]).items()}))
"""
    unset = dict.fromkeys(GOOD)
    result = run_python(code, json.dumps(GOOD), timeout=120, **unset)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found == {name: [0, 1] for name in GOOD}


def test_a_misspelt_name_warns_at_the_first_use_of_the_device(run_python):
    code = (
        "import torch; torch.ones(2); print('before', flush=True); [torch.ones(2, device='neuron') for _ in range(3)]; torch.neuron.init()"
    )
    misspelt = run_python(code, TORCH_NEURONX_FALBACK="error", TORCH_NEURONX_LOG_LEVEL="3")
    assert misspelt.returncode == 0 and misspelt.stdout == "before\n"
    assert misspelt.stderr.count("<TorchNeuron/Settings>") == 1, misspelt.stderr
    assert "TORCH_NEURONX_FALBACK is read by nothing. Did you mean TORCH_NEURONX_FALLBACK?" in misspelt.stderr
    assert run_python(code, TORCH_NEURONX_LOG_LEVEL="3").stderr == ""  # AWS's name, without a meaning here
