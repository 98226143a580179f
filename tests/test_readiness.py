"""Readiness: what a chip would make of code that runs on the emulated device."""

import json
from typing import Any

import pytest
import torch

from torch_neuronx import readiness


def test_a_block() -> None:
    with torch.neuron.explain(target="trn2") as report:
        x = torch.ones(4, 4, device="neuron", requires_grad=True)
        for _ in range(3):
            (x @ x).relu().sum().backward()
        x.detach().nonzero()
        (x.detach().double() + 1).sum().item()
    ready = report.readiness
    assert not ready.ready and ready.target == "trn2"
    by_op = {finding.op: finding for finding in ready.findings}
    assert by_op["aten::nonzero"].kind == "fallback" and "depends on data" in by_op["aten::nonzero"].reason
    assert by_op["aten::nonzero"].sites[0].startswith(__file__) and "nonzero_static" in by_op["aten::nonzero"].remedy
    assert by_op["aten::add.Tensor"].kind == "dtype" and "float64" in by_op["aten::add.Tensor"].reason
    assert not {"aten::mm", "aten::relu", "aten::threshold_backward"} & set(by_op)
    assert ready.lowered >= 12 and ready.neffs >= 5  # the backward pass was seen
    assert ready.syncs >= 1 and 0 < ready.peak_bytes < ready.limit_bytes == 24 << 30
    text = str(report)
    assert "readiness for trn2: not ready" in text and "not on a chip" in text
    assert json.loads(ready.json())["ready"] is False
    assert "<table>" in ready.html() and "aten::nonzero" in ready.html()


def test_a_script(run_python: Any, tmp_path: Any) -> None:
    script = tmp_path / "train.py"
    lines = ["import sys, torch", "assert sys.argv[1:] == ['--n', '2']", "x = torch.ones(2, 2, device='neuron')", "(x @ x).relu()"]
    script.write_text("\n".join(lines))
    out, page = tmp_path / "r.json", tmp_path / "r.html"
    code = "import sys; from torch_neuronx.readiness import main; sys.exit(main(sys.argv[1:]))"
    done = run_python(code, str(script), "--target", "trn2", "--json", str(out), "--html", str(page), "--", "--n", "2", timeout=250)
    assert done.returncode == 0, done.stderr
    assert "readiness for trn2: ready" in done.stdout
    assert json.loads(out.read_text())["neffs"] == 3 and page.read_text().startswith("<!doctype html>")  # ones, mm, relu


def test_a_training_loop_that_prints_its_loss_is_ready() -> None:
    with torch.neuron.explain(target="trn2") as report:
        model = torch.nn.Linear(4, 4).to("neuron").bfloat16()
        loss = model(torch.ones(2, 4, device="neuron", dtype=torch.bfloat16)).sum()
        loss.backward()
        loss.item()
    assert report.readiness.ready, str(report)
    assert report.readiness.syncs >= 1


@pytest.mark.parametrize("command", [("torch_neuronx.readiness",), ("torch_neuronx.compiler", "precompile")])
def test_no_such_script(run_python: Any, command: tuple[str, ...]) -> None:
    code = f"import sys; from {command[0]}{'.__main__' if command[1:] else ''} import main; sys.exit(main(sys.argv[1:]))"
    done = run_python(code, *command[1:], "nosuch.py")
    assert done.returncode == 2 and 'error: there is no script "nosuch.py"' in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_strict(run_python: Any) -> None:
    code = """
import torch
x = torch.ones(3, 3, device="neuron")
print((x + 1).relu().sum().item())
try:
    x.nonzero()
except RuntimeError as error:
    print(error)
"""
    done = run_python(code, timeout=250, TORCH_NEURONX_STRICT="trn2")
    assert done.stdout.startswith("18.0\nTORCH_NEURONX_STRICT=trn2: aten::nonzero would not run on the chip"), done.stdout + done.stderr
    done = run_python("import torch; torch.ones(1, device='neuron')", TORCH_NEURONX_STRICT="trn9")
    assert done.returncode and "accepted values are trn1, trn2, trn3" in done.stderr
    assert "failed to load" not in done.stderr and "direct cause" not in done.stderr
    done = run_python("import torch; print(torch.ones(1) + torch.neuron.device_count())", TORCH_NEURONX_STRICT="trn9")
    assert done.stdout.startswith("tensor(["), done.stderr  # without the device, nothing is said


def test_bad_target() -> None:
    with pytest.raises(ValueError, match='"gpu" is no target'):
        readiness.Watch("gpu")
