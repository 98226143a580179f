"""Every test compiles anew, and finds no cache of an earlier run."""

import logging

import pytest
import torch

# Hundreds of empty records a test, which pytest would keep and print.
logging.getLogger("torch.__trace").propagate = False


@pytest.fixture(autouse=True)
def compile_anew(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    torch.compiler.reset()
    yield
    torch.compiler.reset()
