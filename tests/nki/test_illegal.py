"""Kernels that the hardware or its compiler would refuse: each is refused here, with its own line and the rule."""

import re
from pathlib import Path

import nki
import nki.language as nl
import pytest

from tests.nki.illegal import control, dma, engines, memory, other_engines, shapes, tensor_engine
from tests.nki.illegal.cases import CASES, X, tile

RULES = (shapes, memory, engines, tensor_engine, other_engines, dma, control)  # importing them registers their cases


@pytest.mark.parametrize("body, rule, target, error", CASES)
def test_refused(body, rule, target, error, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)

    def kernel(x):
        out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
        body(x)
        nl.store(out, tile((1, 1)))
        return out

    with pytest.raises(error, match=rule) as refusal:
        nki.simulate(kernel)(X)
    folder = re.escape(str(Path(body.__code__.co_filename).parent))
    assert re.search(rf"{folder}/\w+\.py:\d+: |Unsupported dtype", str(refusal.value)), "the refusal names the kernel's line"


def test_there_are_enough_kinds():
    assert len(CASES) >= 80
    assert {case.values[0].__module__ for case in CASES} == {rule.__name__ for rule in RULES}
