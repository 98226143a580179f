"""torch_neuronx.aot: an exported program in a file, run by a process that has never seen the model."""

import pytest
import torch
from torch import nn

from torch_neuronx import aot

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, scale=None):
        self.calls.add_(1)
        y = self.body(x)
        return {"y": y if scale is None else y * scale, "norm": y.norm(dim=1), "none": None}
"""
space: dict = {}
exec(MODEL, space)
Model = space["Model"]


def exported(model: nn.Module, *args, **kwargs):
    return torch.export.export(model.eval(), args, **kwargs)


@pytest.mark.parametrize("device", ["neuron", "cpu"])
def test_another_process_needs_no_model(run_python, tmp_path, device):
    torch.manual_seed(0)
    model, x = Model().to(device), torch.randn(4, 6, device=device)
    aot.save(exported(model, x, dynamic_shapes={"x": {0: torch.export.Dim("batch", max=64)}}), tmp_path / "model")
    model, x = model.to("neuron"), x.to("neuron")
    inputs = [x, torch.cat([x, x + 1]), x[:3]]
    torch.save([inputs, [model(value) for value in inputs]], tmp_path / "expected")
    code = f"""
import torch
from torch_neuronx import aot
model = aot.load({str(tmp_path / "model")!r})
inputs, expected = torch.load({str(tmp_path / "expected")!r})
for _ in range(2):
    for x, wanted in zip(inputs, expected):
        given = model(x)
        assert given.keys() == wanted.keys() and given["none"] is None
        assert torch.equal(given["y"], wanted["y"]) and torch.equal(given["norm"], wanted["norm"])
print(model.state["calls"].item())
try:
    model(torch.zeros(65, 6, device="neuron"))
except ValueError as error:
    print(error)
"""
    run = run_python(code, timeout=180)
    calls, refusal = run.stdout.splitlines()
    assert int(calls) == 6, run.stderr
    assert refusal.startswith("x has size 65 in dimension 0") and refusal.endswith("to 64")


def test_bad_arguments_are_named(tmp_path):
    x = torch.randn(4, 6, device="neuron")
    aot.save(exported(nn.Linear(6, 2).to("neuron"), x), tmp_path / "model")
    model = aot.load(tmp_path / "model")
    assert model(x).shape == (4, 2)
    for bad, error, message in (
        ((x[:2],), ValueError, "size 2 in dimension 0, but the program wants 4"),
        ((x.double(),), TypeError, "must be a torch.float32 tensor of 2 dimensions, but got torch.float64"),
        ((x.cpu(),), TypeError, "must be on device neuron, but is on cpu"),
        ((x, x), TypeError, "exported for arguments of the structure"),
    ):
        with pytest.raises(error, match=message):
            model(*bad)


def test_other_files_are_refused(tmp_path):
    torch.save({"weights": 1}, tmp_path / "other")
    with pytest.raises(ValueError, match="holds 'dict'"):
        aot.load(tmp_path / "other")
    with pytest.raises(TypeError, match=r"takes a torch.export.ExportedProgram, but got Linear"):
        aot.save(nn.Linear(2, 2), tmp_path / "no")
