"""The examples of ``examples/distributed``, each against one process, and one through torchrun as its documentation says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.distributed.torchrun import torchrun
from tests.distributed.workers import Ranks

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "distributed"


def load(name: str) -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


def check(name: str, steps: int) -> None:
    load(name).check(steps)


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "tp_fsdp", "context_parallel", "expert_parallel"])
def test_example_is_as_one_process(ranks4: Ranks, name: str) -> None:
    ranks4.run(check, name, 20)


def check_compiled(name: str) -> dict[str, Any]:
    with torch.neuron.explain() as report:
        load(name).check(20, compiled=True)
    return report.as_dict()["compile"]


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "tp_fsdp"])
def test_compiled_example_is_as_one_process(ranks4: Ranks, name: str) -> None:
    for report in ranks4.run(check_compiled, name, timeout=400):
        graphs = report["graphs"]
        assert {graph["name"].split()[0] for graph in graphs} >= {"forward", "backward"}, graphs
        assert all(graph["programs"] > 0 and graph["runs"] >= 20 for graph in graphs), graphs
        assert all("DTensor" in one["reason"] for one in report["recompiles"]), report["recompiles"]  # the first block's input is plain
        collectives = {cut for graph in graphs for cut in graph["cuts"] if "_c10d_functional" in cut}
        assert bool(collectives) == (name == "tp_fsdp"), collectives  # within the blocks; the others' run between the graphs


def check_schedule(schedule: str) -> None:
    load("pipeline").check(20, (schedule,))


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"])
def test_pipeline_is_as_one_process(ranks4: Ranks, schedule: str) -> None:
    ranks4.run(check_schedule, schedule)


def test_elastic_loses_no_step() -> None:
    out = torchrun("--nproc-per-node=2", "--max-restarts=1", EXAMPLES / "elastic.py", "--check", "--steps=4")
    assert "attempt 1 ended as a run that nothing disturbed" in "".join(out)


@pytest.mark.full
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "tp_fsdp", "pipeline", "context_parallel", "expert_parallel"])
def test_example_under_torchrun(name: str) -> None:
    assert "as in one process" in "".join(torchrun("--nproc-per-node=4", EXAMPLES / f"{name}.py", "--check", "--steps=5"))
