"""How fast kernels are simulated, with all checks on: against PyTorch on the same CPU, and in seconds."""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.table import Row, Rows, group
from benchmarks.timing import human_time, interleave, seconds

MATMUL_BAR, ATTENTION_BAR_S = 5.0, 10.0


def _clocked(body: Callable[[], Any]) -> Callable[[], float]:
    """Seconds until the work is done, not only launched."""
    return functools.partial(seconds, body, torch.neuron.synchronize)


@group("nki")
def simulation(effort: float) -> Rows:
    from torch_neuronx.nki import kernels

    lhs, rhs = (torch.randn(1024, 1024, dtype=torch.bfloat16) for _ in range(2))
    left, right = lhs.to("neuron"), rhs.to("neuron")
    first = _clocked(lambda: kernels.matmul(left, right))()
    kernel, plain, ratio = interleave(
        _clocked(lambda: kernels.matmul(left, right)), _clocked(lambda: torch.matmul(lhs.t(), rhs)), int(30 * effort)
    )
    detail = f"{human_time(kernel)} / {human_time(plain)}, first call {human_time(first)}"
    yield Row("matmul 1024^3 bf16, replayed / torch.matmul on the CPU", ratio, "x", MATMUL_BAR, detail)

    q, k, v, d_out = (torch.randn(1, 2048, 128, dtype=torch.bfloat16, device="neuron") for _ in range(4))

    def attention() -> None:
        out, lse = kernels.flash_attention(q, k, v, scale=128**-0.5, causal=True)
        kernels.flash_attention_backward(q, k, v, out, d_out, lse, scale=128**-0.5, causal=True)

    start = time.process_time()
    wall = _clocked(attention)()
    processor = time.process_time() - start
    detail = f"traced and run, processor time ({human_time(wall)} by the clock); replayed in {human_time(_clocked(attention)())}"
    yield Row("flash attention 2048 x 128, forward and backward", processor, "s", ATTENTION_BAR_S, detail)
