"""torch.neuron.explain(): the report from given counters, and the counters from given code."""

from typing import Any

import pytest
import torch

from torch_neuronx import explain as explain_function
from torch_neuronx import metrics
from torch_neuronx.explain import Report, _between, _size

neuron = torch.neuron

COUNTERS: dict[str, Any] = {
    "ops": {
        "aten::add.Tensor": {"calls": 12, "hits": 10, "misses": 2, "inline": 0},
        "aten::nonzero": {"calls": 1, "hits": 0, "misses": 0, "inline": 1},
    },
    "misses": [
        {"op": "aten::add.Tensor", "reason": "first call", "site": "train.py:3"},
        {"op": "aten::add.Tensor", "reason": "arg 0 (self): sizes [2, 3] -> [4, 3]", "site": ""},
    ],
    "syncs": [{"why": "item", "site": "train.py:9"}, {"why": "item", "site": "train.py:9"}, {"why": "copy to the host", "site": ""}],
    "fallbacks": [{"op": "my::op", "reason": "its library registers no kernel", "site": "train.py:5"}],
    "bytes": {"h2d": 1536, "d2h": 4, "d2d": 3 << 30},
    "compiled": {"launches": 2, "calls": 20, "fused_calls": 12, "unwritten_bytes": 2048},
    "windows": {"launches": 3, "calls": 60, "fused_calls": 0, "unwritten_bytes": 0},
    "closed_windows": 4,
    "window_kernels": 0,
    "host_launches": 5,
    "launches": 10,
    "compile": {"graphs": [], "recompiles": []},
}


def test_report_of_given_counters():
    report = Report(COUNTERS)
    assert (report.calls, report.hits, report.misses, report.syncs, report.fallbacks) == (13, 10, 2, 3, 1)
    assert str(report).splitlines() == [
        "neuron: what ran",
        "  operators        13 calls of 2 ops, 10 launches",
        "  cache            10 hits, 2 misses, 1 inline (both run at once, unlaunched)",
        "  host waits       3",
        "  fallbacks        1",
        "  bytes moved      1.5 KiB to the device, 4 B to the host, 3.0 GiB on it",
        "  on the host      5 launches, whose programs were still being compiled",
        "  compiled graphs  2 launches of 20 calls, 12 calls fused, 2.0 KiB never written",
        "  adaptive eager   3 launches of 60 calls, 0 calls fused, 0 B never written",
        "  windows          4, 3 of them one launch",
        "operators:",
        "       12 x aten::add.Tensor",
        "        1 x aten::nonzero",
        "cache misses:",
        "        1 x aten::add.Tensor: first call  at train.py:3",
        "        1 x aten::add.Tensor: arg 0 (self): sizes [2, 3] -> [4, 3]",
        "host waits:",
        "        2 x item  at train.py:9",
        "        1 x copy to the host",
        "fallbacks to the host:",
        "        1 x my::op: its library registers no kernel  at train.py:5",
    ]


def test_as_dict_is_a_copy():
    report = Report(COUNTERS)
    report.as_dict()["ops"].clear()
    assert report.as_dict() == COUNTERS


def test_long_tables_are_cut():
    counters = {**COUNTERS, "ops": {f"aten::op{i:02}": {"calls": 1, "hits": 1, "misses": 0, "inline": 0} for i in range(25)}}
    text = str(Report(counters))
    assert "aten::op09" in text and "aten::op10" not in text and "and 15 more" in text


@pytest.mark.parametrize("count, text", [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (5 << 40, "5120.0 GiB")])
def test_sizes(count, text):
    assert _size(count) == text


def test_between_subtracts():
    after = {**COUNTERS, "ops": {**COUNTERS["ops"], "aten::mul.Tensor": {"calls": 1, "hits": 1, "misses": 0, "inline": 0}}, "launches": 11}
    added = _between(COUNTERS, after)
    assert list(added["ops"]) == ["aten::mul.Tensor"] and added["launches"] == 1 and added["bytes"] == {"h2d": 0, "d2h": 0, "d2d": 0}


def test_hits_and_misses_of_real_calls():
    x = torch.ones(3, 7, device="neuron")
    x + 1
    with neuron.explain() as report:
        for _ in range(5):
            x + 1
    add = report.as_dict()["ops"]["aten::add.Tensor"]
    assert add["calls"] == 5 and add["hits"] == 5 and report.misses == 0 and report.syncs == 0
    with neuron.explain() as report:
        torch.ones(5, 11, device="neuron") + 1
    misses = [miss for miss in report.as_dict()["misses"] if miss["op"] == "aten::add.Tensor"]
    assert len(misses) == 1 and "[3, 7]" in misses[0]["reason"] and "[5, 11]" in misses[0]["reason"], misses


def test_a_changing_learning_rate_does_not_miss():
    model = torch.nn.Linear(4, 4).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x = torch.randn(2, 4, device="neuron")

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()

    for _ in range(3):
        step()
    with neuron.explain() as report:
        for _ in range(3):
            step()
    assert report.misses == 0, report


def test_synchronisations_name_their_line():
    x = torch.ones(4, device="neuron")
    x.sum().item()
    with neuron.explain() as report:
        x.sum().item()
        x.cpu()
    syncs = report.as_dict()["syncs"]
    assert len(syncs) >= 2
    assert all("test_explain.py" in sync["site"] for sync in syncs), syncs
    with neuron.explain(sites=False) as report:
        x.cpu()
    assert report.syncs >= 1 and all(sync["site"] == "" for sync in report.as_dict()["syncs"])


def test_bytes_moved():
    x = torch.ones(256)
    with neuron.explain() as report:
        y = x.to("neuron")
        z = y.to("neuron:1")
        z.cpu()
    assert report.as_dict()["bytes"] == {"h2d": 1024, "d2h": 1024, "d2d": 1024}


def test_blocks_do_not_nest():
    with neuron.explain(), pytest.raises(RuntimeError, match="do not nest"), neuron.explain():
        pass
    with neuron.explain() as report:
        pass
    assert report.calls == 0 and explain_function is neuron.explain


def test_an_exception_ends_the_block():
    with pytest.raises(KeyError), neuron.explain() as report:
        torch.ones(2, device="neuron").add_(1)
        raise KeyError
    assert report.calls >= 1
    with neuron.explain():
        pass


def test_op_tracking():
    neuron.clear_op_tracking()
    torch.ones(2, device="neuron").mul_(2)
    assert "aten::mul_.Scalar" in neuron.get_executed_ops() or "aten::mul_.Tensor" in neuron.get_executed_ops()
    neuron.clear_op_tracking()
    assert neuron.get_executed_ops() == [] and neuron.get_fallback_ops() == []


def test_dynamo_metrics():
    metrics.count("compiled_graphs", 2)
    assert neuron.get_dynamo_metrics()["compiled_graphs"] >= 2
    neuron.reset_dynamo_metrics()
    assert neuron.get_dynamo_metrics() == {"compiled_graphs": 0, "graphs_with_collectives": 0}


def test_fallbacks_are_counted_with_their_reason(run_python):
    code = """
import torch
library = torch.library.Library("probe", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CPU")
x = torch.ones(3, device="neuron")
with torch.neuron.explain() as report:
    y = torch.ops.probe.twice(x)
assert y.is_neuron and y.cpu().tolist() == [2.0] * 3
(item,) = report.as_dict()["fallbacks"]
assert item["op"] == "probe::twice" and "no kernel" in item["reason"], item
print(torch.neuron.get_fallback_ops())
"""
    run = run_python(code, TORCH_NEURONX_FALLBACK="allow")
    assert run.stdout.strip() == "['probe::twice']", run.stderr
