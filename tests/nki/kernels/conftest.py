"""Kernels run as on one generation and then as on the next."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, params=["trn2", pytest.param("trn3", marks=pytest.mark.full)])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", request.param)
    torch.manual_seed(0)
    return request.param
