"""The quickstart: runs on both devices, and with the same weights and data both see the same losses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SMALL = "--steps 8 --batch 4 --context 32 --layers 2 --width 64 --heads 2 --sample 16 --json".split()


def train_gpt(device: str | None, out: Path, *flags: str) -> dict:
    command = [sys.executable, "examples/train_gpt.py", "--out", str(out), *SMALL, *flags]
    if device:
        command += ["--device", device]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_losses_agree_with_cpu(tmp_path):
    neuron, cpu = train_gpt(None, tmp_path / "neuron"), train_gpt("cpu", tmp_path / "cpu")
    assert neuron["device"].startswith("neuron")  # what torch.accelerator chose
    assert len(neuron["losses"]) == 8
    assert neuron["losses"][-1] < neuron["losses"][0]
    assert neuron["losses"] == pytest.approx(cpu["losses"], abs=1e-4)
    assert neuron["held_out_loss"] == pytest.approx(cpu["held_out_loss"], abs=1e-4)


def test_artifacts_and_own_text(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    result = train_gpt("neuron", tmp_path / "out", "--data", str(text), "--dropout", "0.1")
    assert Path(result["curve"]).read_bytes().startswith(b"\x89PNG")
    assert Path(result["checkpoint"]).stat().st_size > 100_000
    assert result["sample"].startswith("def ")
    assert len(result["sample"]) == 4 + 16


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--width", "65"], "--width must be a multiple of --heads; 65 is not one of 2"),
        (["--steps", "0"], "--steps must be at least 1, not 0"),
    ],
)
def test_bad_flags_are_named(flags, message):
    done = subprocess.run([sys.executable, "examples/train_gpt.py", *SMALL, *flags], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr


def test_compile_dynamic():
    """One graph a direction for all lengths, at most two for all lengths of the cache; then replays alone."""
    command = [sys.executable, "examples/compile_dynamic.py", "--json", "--steps", "6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    training, decoding, again = result["new_graphs"]
    assert (training, again) == (2, 0) and decoding <= 2 and result["replays"] == 6
    assert result["losses"][-1] < result["losses"][0]
