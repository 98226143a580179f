"""Training on the Trainium target against the stand-in SDK: losses equal the CPU's, and a second run compiles nothing."""

import json

import pytest

from tests.standin_sdk.conftest import Run

_CASES = [
    ("GPT", "compiled", "trn2", "2.34"),
    pytest.param("GPT", "eager", "trn2", "2.34", marks=pytest.mark.full),
    pytest.param("GPT", "eager", "trn3", "2.30", marks=pytest.mark.full),
    pytest.param("BERT", "compiled", "trn2", "2.34", marks=pytest.mark.full),
    pytest.param("ResNet", "compiled", "trn2", "2.34", marks=pytest.mark.full),
]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "mode", "device", "runtime"), _CASES)
def test_losses(on_chip: Run, name: str, mode: str, device: str, runtime: str) -> None:
    told = on_chip("training:train", name, mode, device=device, runtime=runtime, timeout=1000).stdout
    first = json.loads(told.splitlines()[-1])
    assert first["failures"] == 0
    if (device, runtime) != ("trn2", "2.34"):
        return
    again = json.loads(on_chip("training:train", name, mode, device=device, runtime=runtime, timeout=1000).stdout.splitlines()[-1])
    assert again["compiles"] == 0 and again["hits"] == first["compiles"] + first["hits"]
    assert again["neuron"] == first["neuron"]
