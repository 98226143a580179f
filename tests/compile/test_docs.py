"""The Python of docs/compile.md runs as it stands there."""

import re

import torch
from torch import nn

from tests.conftest import ROOT


def test_every_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU()).to("neuron")
    space = {"torch": torch, "model": model, "x": torch.randn(4, 6, device="neuron")}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/compile.md").read_text(), re.S)
    assert len(blocks) == 4
    for block in blocks:
        exec(block, space)
        space["compiled"](space["x"])  # what the first block made is compiled before the second counts recompiles
    assert space["model"](space["x"]).shape == (4, 8)
