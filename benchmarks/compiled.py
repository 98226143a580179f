"""torch.compile on `neuron` against Inductor on the CPU: steady state, cold, warm and under sizes that change.

Inductor compiles with the C++ compiler of the machine; both sides run in this process, interleaved, but for the cold times.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from statistics import geometric_mean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import Training
from benchmarks.table import Row, Rows, group
from benchmarks.timing import human_time, interleave, run_child, seconds

DEVICES = ("neuron", "cpu")
BACKENDS = {"neuron": "neuron", "cpu": "inductor"}
BAR_EACH, BAR_MEAN, BAR_COLD, BAR_WARM, BAR_DYNAMIC = 1.1, 1.0, 0.15, 1.0, 0.5


def compiled(function: Callable, device: str, **kwargs) -> Callable:
    return torch.compile(function, backend=BACKENDS[device], **kwargs)


# ---- Steady state: each makes a function of no arguments for a device ------------------------------------------------------


def training_step(device: str) -> Callable:
    training = Training("GPT 4 x 256", "foreach", device)
    training.model = compiled(training.model, device)  # type: ignore[assignment]
    return lambda: training.step().item()


class DecodeLayer(nn.Module):
    """One token through a Llama-like layer with a cache of 256 positions: small matmuls, norms, rotation."""

    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    qkv: nn.Linear
    out: nn.Linear

    def __init__(self, width: int = 256, heads: int = 8, length: int = 256) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in ((width, 704), (width, 704), (704, width)))
        self.register_buffer("k", torch.randn(1, heads, length, self.size))
        self.register_buffer("v", torch.randn(1, heads, length, self.size))
        angles = torch.outer(torch.arange(length), 1e4 ** (-torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def rotate(self, x: Tensor, place: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos[place] + torch.cat([-second, first], -1) * self.sin[place]

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).view(1, 1, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        self.k.index_copy_(2, place, self.rotate(k, place))
        self.v.index_copy_(2, place, v)
        mask = (torch.arange(self.k.shape[2], device=x.device) <= place)[None]
        y = F.scaled_dot_product_attention(self.rotate(q, place), self.k, self.v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def decode_step(device: str) -> Callable:
    torch.manual_seed(0)
    model = nn.ModuleList(DecodeLayer() for _ in range(4)).to(device).eval()
    x, place = torch.randn(1, 1, 256).to(device), torch.tensor([17]).to(device)

    def step(x: Tensor) -> Tensor:
        for layer in model:
            x = layer(x, place)
        return x

    step_ = compiled(step, device)

    def run() -> object:
        with torch.no_grad():
            return step_(x).sum().item()

    return run


def diffusion_block(device: str) -> Callable:
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(8, 64), nn.GroupNorm(8, 64)
            self.conv1, self.conv2 = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
            self.time = nn.Linear(128, 128)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, 1)
            h = self.conv1(F.silu(self.norm1(x)))
            return x + self.conv2(F.silu(self.norm2(h) * (1 + scale) + shift))

    block = Block().to(device)
    x, t = torch.randn(2, 64, 32, 32).to(device), torch.randn(2, 128).to(device)
    run = compiled(block, device)

    def step() -> object:
        loss = run(x, t).square().mean()
        loss.backward()
        return loss.item()

    return step


def chain(device: str) -> Callable:
    x = torch.rand(4 << 20).to(device)  # 16 MB

    def twenty(x: Tensor) -> Tensor:
        for i in range(5):
            x = F.silu(x * 1.01 + i * 0.1).abs() - 0.05
        return x

    run = compiled(twenty, device)
    return lambda: run(x)[0].item()


def adamw(device: str) -> Callable:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(1000, 1000).to(device)) for _ in range(10)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    step = compiled(optimizer.step, device)

    def run() -> object:
        step()
        return parameters[0].detach()[0, 0].item()

    return run


CASES = {
    "GPT 4 x 256, training step": training_step,
    "decode step, 4 layers": decode_step,
    "diffusion block, forward and backward": diffusion_block,
    "20 pointwise calls on 16 MB": chain,
    "AdamW on 10 M parameters": adamw,
}


@group("compiled")
def steady(effort: float) -> Rows:
    ratios = []
    for name, make in CASES.items():
        torch.compiler.reset()
        sides = [make(device) for device in DEVICES]
        for side in sides:
            for _ in range(3):
                side()
        ours, theirs, ratio = interleave(lambda: seconds(sides[0]), lambda: seconds(sides[1]), int(15 * effort))  # noqa: B023
        ratios.append(ratio)
        yield Row(name, ratio, bar=BAR_EACH, detail=f"{human_time(ours)} against Inductor's {human_time(theirs)}")
    yield Row("geometric mean", geometric_mean(ratios), bar=BAR_MEAN)


# ---- Cold, warm, dynamic: processes of their own ---------------------------------------------------------------------------

COLD = """
import json, time, torch
from benchmarks.models import Training
device, backend = {device!r}, {backend!r}
for warm_up in (Training("GPT 4 x 256", "foreach", device),):
    warm_up.step().item(); warm_up.step().item()
training = Training("GPT 4 x 256", "foreach", device)
training.model = torch.compile(training.model, backend=backend)
start = time.perf_counter(); training.step().item()
print(json.dumps({{"seconds": time.perf_counter() - start}}))
"""


def child(code: str, **environment: str) -> dict:
    return run_child("-c", code, **environment)


@group("compile time")
def compile_time(effort: float) -> Rows:
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for device in DEVICES:
            for which in ("cold", "warm"):
                times[f"{device} {which}"] = first_step(device, BACKENDS[device], f"{folder}/{device}")
        dynamo = first_step("neuron", "eager", f"{folder}/dynamo")
    for which, bar in (("cold", BAR_COLD), ("warm", None)):
        ours, theirs = times[f"neuron {which}"], times[f"cpu {which}"]
        yield Row(f"GPT 4 x 256, {which}", ours / theirs, bar=bar, detail=f"{human_time(ours)} against Inductor's {human_time(theirs)}")
    detail = f'{human_time(times["neuron warm"])}; with backend "eager", which compiles nothing, {human_time(dynamo)}'
    yield Row("GPT 4 x 256, warm: seconds beyond Dynamo's own", times["neuron warm"] - dynamo, "s", BAR_WARM, detail=detail)
    for count, backward in ((64, False), (16, True)):
        ours, graphs = dynamic_lengths("neuron", count, backward)
        theirs, _ = dynamic_lengths("cpu", count, backward)
        name = f"{count} lengths, dynamic, forward{' and backward' if backward else ''}"
        yield Row(name, ours / theirs, bar=BAR_DYNAMIC, detail=f"{human_time(ours)} against {human_time(theirs)}")
        yield Row(f"graphs for {count} lengths", graphs, "", 2.0)


def first_step(device: str, backend: str, cache: str) -> float:
    """Seconds that the first training step under ``torch.compile`` takes in a process of its own, in which eager steps were made before."""
    return child(COLD.format(device=device, backend=backend), TORCHINDUCTOR_CACHE_DIR=cache)["seconds"]


def dynamic_lengths(device: str, count: int, backward: bool) -> tuple[float, float]:
    """Seconds for one pass of each of ``count`` lengths, compilation included; and how often Dynamo compiled."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    model = compiled(Training("GPT 4 x 256", "foreach", device).model, device, dynamic=True)
    with tempfile.TemporaryDirectory() as folder, torch.set_grad_enabled(backward), _environment("TORCHINDUCTOR_CACHE_DIR", folder):
        start = time.perf_counter()
        for length in range(1, count + 1):
            result = model(torch.zeros(2, length, dtype=torch.int64, device=device)).sum()
            if backward:
                result.backward()
            result.item()
        return time.perf_counter() - start, counters["stats"]["unique_graphs"]


def _environment(name: str, value: str):
    from unittest import mock

    return mock.patch.dict("os.environ", {name: value})
