"""NKI kernels on the Trainium target against the stand-in SDK."""

import json

import pytest

from tests.standin_sdk.conftest import Run
from tests.standin_sdk.kernels import refusal


@pytest.mark.parametrize("device", ["trn2", pytest.param("trn3", marks=pytest.mark.full)])
def test_kernels(on_chip: Run, device: str) -> None:
    on_chip("nki_kernels:everything", device=device, TORCH_NEURONX_ADAPTIVE_EAGER="0")


@pytest.mark.full
def test_windows(on_chip: Run) -> None:
    on_chip("nki_kernels:windows", TORCH_NEURONX_ADAPTIVE_EAGER="1")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"kernel": "k", "target": "trn2", "lnc": 2}, None),
        ({"kernel": "k", "target": "trn3", "lnc": 1}, "traced for trn3"),
        ({"kernel": "k", "target": "trn2", "lnc": 4}, "needs 4 physical cores"),
        ({"kernel": "k"}, "is not the stand-in's"),
    ],
)
def test_what_the_compiler_takes(config: dict[str, object], why: str | None) -> None:
    found = refusal(json.dumps(config), "trn2", 2)
    assert found is None if why is None else why in str(found)
