"""Copies between host and device, against a copy from host to host."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.table import Row, Rows, group
from benchmarks.timing import human_time, interleave, seconds, synchronize

SIZES = {"64 MiB": 64 << 20, "4 KiB": 4 << 10}


def copier(to: Tensor, source: Tensor, repeats: int) -> Callable[[], float]:
    """Seconds of one copy, each waited for."""

    def body() -> None:
        for _ in range(repeats):
            to.copy_(source)

    def run() -> float:
        return seconds(body, synchronize) / repeats

    run()
    return run


@group("host copy")
def copies(effort: float) -> Rows:
    for label, size in SIZES.items():
        repeats = 1 if size > 1 << 20 else 500
        host = copier(torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8), repeats)
        for pinned in (False, True):
            memory = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
            device = torch.ones(size, dtype=torch.uint8, device="neuron")
            for way, to, source in (("host to device", device, memory), ("device to host", memory, device)):
                neuron, cpu, ratio = interleave(copier(to, source, repeats), host, int(15 * effort))
                detail = f"{human_time(neuron)} against {human_time(cpu)}"
                yield Row(f"{way}, {label}{', pinned' if pinned else ''}", ratio, detail=detail)
