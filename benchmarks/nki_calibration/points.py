"""The published measurements, and how the model is asked for the same figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.nki_calibration import kernels
from torch_neuronx.nki.cost_dma import row_ns
from torch_neuronx.nki.cost_parameters import PARAMETERS
from torch_neuronx.nki.kernels import conv2d, matmul_fp8, selective_scan
from torch_neuronx.nki.profiler import Profile

FIT, CHECK, BOUND = "fit", "check", "bound"
BARS = {"matmul": 0.15, "other": 0.30}  # largest error allowed on points of use "check"


@dataclass(frozen=True)
class Point:
    """``use``: "fit" (a parameter was chosen to meet it), "check" (held out), "bound" (published only as an upper limit)."""

    what: str
    shape: str
    target: str
    measured_us: float
    source: str
    use: str
    group: str  # matmul or other: which bar applies
    model: Callable[[], float]  # microseconds
    quick: bool = True  # False: takes more than a few seconds to trace

    def error(self, modelled: float) -> float:
        return modelled / self.measured_us - 1


def _tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _time(kernel: object, *args: object, target: str, **kwargs: object) -> float:
    profile: Profile = kernel.profile(*args, target=target, **kwargs)
    return profile.time_us


def _matmul(kernel: object) -> Callable[[], float]:
    return lambda: _time(kernel, _tensor(8192, 4096), _tensor(8192, 8192), target="trn1")


def _mamba_v2(steps: int) -> Callable[[], float]:
    f32 = torch.float32
    per_channel, per_state = _tensor(1, 4096, steps, dtype=f32), _tensor(1, 16, steps, dtype=f32)
    return lambda: _time(selective_scan, per_channel, per_channel, _tensor(4096, 16, dtype=f32), per_state, per_state, target="trn1")


def _mamba_v1() -> float:
    f32 = torch.float32
    per_channel, per_state = _tensor(256, 512, dtype=f32), _tensor(16, 512, dtype=f32)
    return _time(kernels.mamba_v1, per_channel, per_channel, _tensor(256, 16, dtype=f32), per_state, per_state, target="trn1")


def _attention(tokens: int, dim: int, dtype: torch.dtype, allocated: bool) -> Callable[[], float]:
    turned, plain = _tensor(dim, tokens, dtype=dtype), _tensor(tokens, dim, dtype=dtype)
    return lambda: _time(kernels.attention_fused, turned, turned, plain, sums_on_scalar=allocated, target="trn1")


def _conv(dtype: torch.dtype) -> Callable[[], float]:
    return lambda: _time(conv2d, _tensor(1, 256, 224, 224, dtype=dtype), _tensor(256, 256, 3, 3, dtype=dtype), target="trn2")


def _double_row() -> float:
    f8 = torch.float8_e5m2
    return _time(matmul_fp8, _tensor(16384, 512, dtype=f8), _tensor(16384, 1024, dtype=f8), target="trn2")


def _one_dma() -> float:
    """Occupancy of the DMA engine: the published figure does not hold the fixed latency."""
    profile = kernels.one_dma.profile(_tensor(4, 4096), target="trn2")
    first = next(span for span in profile.spans if span.engine.name == "dma")
    return (first.end - first.start) / 1000


def _dependent() -> float:
    profile = kernels.dependent_activations.profile(_tensor(128, 1, dtype=torch.float32), target="trn1")
    starts = [span.start for span in profile.spans if span.engine.name == "scalar"]
    return (starts[-1] - starts[0]) / (len(starts) - 1) / 1000


_DOCS = "AWS documents"
_SAMPLES = "nki-samples tests, threshold / 1.05"
_COURSE = "CS149 2025, threshold / 1.2"


def _trn1_matmul(what: str, ms: float, use: str, kernel: object) -> Point:
    return Point(f"matmul, {what}", "4096x8192x8192 bf16", "trn1", 1000 * ms, _DOCS, use, "matmul", _matmul(kernel), quick=False)


def _self_attention(what: str, tokens: int, dim: int, dtype: torch.dtype, threshold: float) -> Point:
    shape = f"{tokens}x{dim} {str(dtype).removeprefix('torch.')}"
    model = _attention(tokens, dim, dtype, what == "allocated")
    quick = what == "allocated" and dtype is torch.bfloat16 and tokens == 4096
    return Point(f"self-attention of one head, {what}", shape, "trn1", threshold / 1.05, _SAMPLES, CHECK, "other", model, quick)


def _mamba(steps: int, ms: float) -> Point:
    shape = f"C 4096, N 16, {steps} steps, fp32"
    return Point("mamba v2", shape, "trn1", 1000 * ms, _DOCS, CHECK, "other", _mamba_v2(steps), quick=False)


def _conv3x3(dtype: torch.dtype, threshold: float) -> Point:
    shape = f"224x224 {str(dtype).removeprefix('torch.')}"
    return Point("conv2d 3x3, 256 to 256 channels", shape, "trn2", threshold / 1.2, _COURSE, CHECK, "other", _conv(dtype), quick=False)


def _transpose() -> float:
    return _time(kernels.transpose_all, _tensor(4096, 4096), target="trn2")


POINTS: list[Point] = [
    _trn1_matmul("loads for every tile", 51.80, CHECK, kernels.matmul_tiled),
    _trn1_matmul("loads hoisted", 42.96, FIT, kernels.matmul_hoisted),
    _trn1_matmul("free dimensions blocked", 22.07, CHECK, kernels.matmul_blocked_free),
    _trn1_matmul("all dimensions blocked", 6.97, CHECK, kernels.matmul_blocked_all),
    Point("matmul, fp8 double row", "512x16384x1024", "trn2", 320, "nki-samples tests, p99", BOUND, "matmul", _double_row),
    Point("dependent activations", "[128, 1], interval", "trn1", 0.189, _DOCS, FIT, "other", _dependent),
    Point("DMA on one engine", "4 rows of 8 KiB", "trn2", 1.416, _DOCS, CHECK, "other", _one_dma),
    Point("mamba v1", "C 256, N 16, 512 steps, fp32", "trn1", 172.93, _DOCS, CHECK, "other", _mamba_v1),
    *(_mamba(steps, ms) for steps, ms in ((1024, 4.4), (2048, 8.9), (3072, 13.1), (4096, 17.6), (5120, 23.7), (6144, 27.5))),
    _self_attention("fused", 4096, 128, torch.bfloat16, 536),
    _self_attention("fused", 4096, 128, torch.float32, 675),
    _self_attention("fused", 4096, 64, torch.float16, 600),
    _self_attention("allocated", 4096, 128, torch.bfloat16, 380),
    _self_attention("allocated", 4096, 128, torch.float32, 410),
    _self_attention("allocated", 5120, 128, torch.bfloat16, 586),
    _conv3x3(torch.float16, 1002),
    _conv3x3(torch.float32, 4596),
    Point("transpose on the Tensor Engine", "4096x4096 bf16", "trn2", 700, "CS149 2025", BOUND, "other", _transpose),
]

# The documents' throughput chart: bytes per partition against the share of the peak, 128 partitions. All of it was used for the fit of
# trn2's rows.
DMA_CHART = {
    32: 0.014, 64: 0.026, 128: 0.050, 256: 0.103, 512: 0.206, 1024: 0.422, 2048: 0.813, 4096: 0.966, 8192: 0.983, 16384: 0.990, 32768: 1.0,
}  # fmt: skip


def chart_share(run: int) -> float:
    """The model's share of the peak for rows of ``run`` bytes on trn2, relative to rows of 32 KiB as in the chart."""
    parameters = PARAMETERS["trn2"]
    return (run / row_ns(run, parameters)) / (32768 / row_ns(32768, parameters))
