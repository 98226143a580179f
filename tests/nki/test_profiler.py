"""The modelled schedule of a kernel, and what a profile says about it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import pytest
import torch
from nki.collectives import ReplicaGroup

from torch_neuronx.nki.kernels import matmul, softmax
from torch_neuronx.nki.profiler import BenchmarkResult, Profile

META = torch.device("meta")


@nki.jit
def exp_kernel(x: Any, independent: bool = True, ordered: bool = False) -> Any:
    """Two engines at work on two tiles, or on one after the other."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=b, src=x)  # b is there before a
    nisa.dma_copy(dst=a, src=x)

    def both() -> None:
        nisa.activation(dst=a, op=nl.exp, data=a)
        nisa.tensor_scalar(dst=b if independent else a, data=b if independent else a, op0=nl.add, operand0=1.0, engine=nisa.engine.vector)

    if ordered:
        with nl.no_reorder():
            both()
    else:
        both()
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    nisa.dma_copy(dst=out, src=a)
    return out


def spans_of(profile: Profile, opcode: str) -> list[Any]:
    return [span for span in profile.spans if span.instruction.opcode == opcode]


def test_independent_engines_run_ahead_and_dependent_ones_wait() -> None:
    x = torch.empty(128, 512, device=META)
    profile = exp_kernel.profile(x, target="trn2")
    exp, add = spans_of(profile, "activation")[0], spans_of(profile, "tensor_scalar")[0]
    assert add.start < exp.start  # though it comes later in the program

    profile = exp_kernel.profile(x, independent=False, target="trn2")
    exp, add = spans_of(profile, "activation")[0], spans_of(profile, "tensor_scalar")[0]
    assert add.start > exp.end

    profile = exp_kernel.profile(x, ordered=True, target="trn2")
    exp, add = spans_of(profile, "activation")[0], spans_of(profile, "tensor_scalar")[0]
    assert add.start >= exp.end


def test_an_engine_does_one_thing_at_a_time() -> None:
    profile = softmax.profile(torch.empty(512, 1024, dtype=torch.bfloat16, device=META), target="trn2")
    by_lane: dict[str, list[Any]] = {}
    for span in profile.spans:
        for lane in span.lanes:
            by_lane.setdefault(lane, []).append(span)
    for spans in by_lane.values():
        spans.sort(key=lambda span: span.start)
        assert all(one.end <= next_one.start + 1e-6 for one, next_one in itertools.pairwise(spans))
    assert all(0 <= share <= 1 for share in profile.utilization.values())
    assert max(span.end for span in profile.spans) <= profile.time_us * 1000


def test_psum_banks_limit_how_far_matmuls_run_ahead() -> None:
    """Nine results need a bank each and there are eight, so the ninth waits until the first has been copied out."""

    @nki.jit
    def nine(x: Any) -> Any:
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        a = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x)
        for _ in range(9):
            product = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=product, stationary=a[:, 0:128], moving=a)
            result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            for _ in range(16):  # the copies are slower than the matmuls
                nisa.activation(dst=result, op=nl.exp, data=product)
        nisa.dma_copy(dst=out, src=result)
        return out

    profile = nine.profile(torch.empty(128, 512, device=META), target="trn2")
    products = spans_of(profile, "nc_matmul")
    copies = spans_of(profile, "activation")
    assert products[7].end < copies[15].end  # eight ran ahead
    assert products[8].start >= copies[15].end


def test_attributes_of_a_matmul() -> None:
    size = 1024
    a, b = (torch.empty(size, size, dtype=torch.bfloat16, device=META) for _ in range(2))
    profile = matmul.profile(a, b, target="trn2")
    assert profile.operations == 2 * size**3
    assert profile.hbm_bytes == 2 * 3 * size**2  # each operand once
    assert profile.intensity == profile.operations / profile.hbm_bytes
    roof = profile.roofline
    assert roof.bound == "compute"
    assert roof.compute_us == pytest.approx(profile.operations / (2 * 128 * 128 * 2.4) / 1000)
    assert roof.time_us < profile.time_us and roof.share == pytest.approx(roof.time_us / profile.time_us)
    assert profile.bound in ("tensor", "dma") and profile.utilization[profile.bound] > 0.5
    assert {"tensor", "vector", "scalar", "gpsimd", "sync", "dma", "dma0", "dma15"} <= set(profile.utilization)
    assert "modelled" in str(profile) and "modelled" in repr(profile) and "modelled" in profile.note


def test_the_same_kernel_takes_longer_on_an_older_generation() -> None:
    a = torch.empty(512, 512, dtype=torch.bfloat16, device=META)
    times = {name: softmax.profile(a, target=name).time_us for name in ("trn1", "trn2", "trn3")}
    assert times["trn1"] > times["trn2"] > times["trn3"]


def test_a_device_loop_counts_its_turns() -> None:
    @nki.jit
    def looped(x: Any, turns: int) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x)
        nl.fori_loop(0, turns, lambda i: nisa.activation(dst=a, op=nl.exp, data=a) and None)
        nisa.dma_copy(dst=out, src=a)
        return out

    x = torch.empty(128, 512, device=META)
    once, often = looped.profile(x, 1, target="trn2"), looped.profile(x, 10, target="trn2")
    assert often.busy_us["scalar"] == pytest.approx(10 * once.busy_us["scalar"])
    assert often.time_us > once.time_us + 9 * once.busy_us["scalar"]


def test_two_cores_share_the_work() -> None:
    @nki.jit
    def halves(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        rows = x.shape[0] // nl.num_programs()
        first = nl.program_id(0) * rows
        for start in range(first, first + rows, 128):
            a = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=a, src=x[start : start + 128, :])
            nisa.activation(dst=a, op=nl.exp, data=a)
            nisa.dma_copy(dst=out[start : start + 128, :], src=a)
        return out

    x = torch.empty(2048, 1024, device=META)
    one, two = halves.profile(x, target="trn2"), halves[2].profile(x, target="trn2")
    assert two.cores == 2 and two.hbm_bytes == one.hbm_bytes
    assert two.time_us < 0.7 * one.time_us
    assert {span.core for span in two.spans} == {0, 1}


def test_a_collective_takes_a_step_per_rank() -> None:
    @nki.jit
    def gather(x: Any, ranks: tuple[int, ...]) -> Any:
        out = nl.ndarray((x.shape[0] * len(ranks), x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
        ncc.all_gather([x], [out], ReplicaGroup([list(ranks)]), 0)
        return out

    x = torch.empty(128, 512, device=META)
    two, four = (gather.profile(x, tuple(range(n)), target="trn2") for n in (2, 4))
    assert four.time_us - two.time_us > 2 * 1.5
    assert two.hbm_bytes == 3 * 128 * 512 * 4  # the own part is read, two are written


def test_perfetto(tmp_path: Path) -> None:
    profile = exp_kernel.profile(torch.empty(128, 512, device=META), target="trn2")
    trace = json.loads(profile.to_perfetto(tmp_path / "trace.json").read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == sum(len(span.lanes) for span in profile.spans)
    assert {event["name"] for event in spans} >= {"activation", "tensor_tensor", "dma_copy"}
    assert all("modelled" in event["args"]["note"] for event in spans)
    assert any("test_profiler.py:" in event["args"]["line"] for event in spans)
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == ["NeuronCore 0, trn2 (modelled, not measured)"]


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = exp_kernel.profile(torch.empty(128, 512, device=META), target="trn2").plot(tmp_path / "timeline.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000


def test_profiling_does_not_import_matplotlib(run_python: Any) -> None:
    code = """
import sys, torch, torch_neuronx.nki.profiler
from torch_neuronx.nki.kernels import softmax
softmax.profile(torch.empty(128, 128, device="meta"), target="trn2")
assert "matplotlib" not in sys.modules
"""
    done = run_python(code, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_most_expensive_line_comes_first() -> None:
    lines = exp_kernel.profile(torch.empty(128, 512, device=META), target="trn2").lines()
    assert [line.busy_us for line in lines] == sorted((line.busy_us for line in lines), reverse=True)
    assert {line.engine for line in lines} == {"dma", "scalar", "sync", "vector"}
    assert all(line.line.file.endswith("test_profiler.py") for line in lines)


def test_benchmark_result() -> None:
    profile = exp_kernel.profile(torch.empty(128, 512, device=META), target="trn2")
    latency = BenchmarkResult(profile).nc_latency
    assert latency.get_latency_percentile(50) == latency.get_latency_percentile(99) == profile.time_us
    with pytest.raises(ValueError, match="101"):
        latency.get_latency_percentile(101)


@nki.jit
def double(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=a)
    return out


def test_the_benchmark_decorator_runs_and_models() -> None:
    x = torch.randn(128, 32)
    bench = nki.benchmark(warmup=2, iters=3)(double)
    assert bench.benchmark_result is None and bench.__name__ == "double"
    torch.testing.assert_close(bench(x), 2 * x)
    assert bench.benchmark_result.nc_latency.get_latency_percentile(99) == double.profile(x).time_us
    bench[1](x)
    assert bench.benchmark_result.profile.cores == 1
    assert "modelled" in bench.benchmark_result.note


def test_the_profile_decorator_writes_a_timeline(tmp_path: Path) -> None:
    nki.profile(working_directory=tmp_path, profile_nth=2)(double)(torch.randn(128, 32))
    assert json.loads((tmp_path / "double.perfetto.json").read_text())["otherData"]["kernel"] == "double"
