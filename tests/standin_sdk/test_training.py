"""Training on the Trainium target against the stand-in SDK: losses equal the CPU's, and a second run compiles nothing."""

import json
from typing import Any

import pytest

from tests.standin_sdk.conftest import Run

_EVERYWHERE = [("trn2", "2.34"), ("trn2", "2.30"), ("trn3", "2.34"), ("trn3", "2.30")]
_REPRESENTATIVE = ("GPT", "compiled", "trn2", "2.34")


def _cases() -> list[Any]:
    cases = [(name, mode, *where) for name in ("GPT", "ResNet", "BERT") for mode in ("eager", "compiled") for where in _EVERYWHERE]
    return [pytest.param(*case, marks=[] if case == _REPRESENTATIVE else pytest.mark.full) for case in cases]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "mode", "device", "runtime"), _cases())
def test_losses(on_chip: Run, name: str, mode: str, device: str, runtime: str) -> None:
    told = on_chip("training:train", name, mode, device=device, runtime=runtime, timeout=1000).stdout
    first = json.loads(told.splitlines()[-1])
    assert first["failures"] == 0
    if (device, runtime) != ("trn2", "2.34"):
        return
    again = json.loads(on_chip("training:train", name, mode, device=device, runtime=runtime, timeout=1000).stdout.splitlines()[-1])
    assert again["compiles"] == 0 and again["hits"] == first["compiles"] + first["hits"]
    assert again["neuron"] == first["neuron"]
