"""``neuronxcc.nki``: kernels of beta 1, in which instructions return tiles.

``jit``, ``trace``, ``baremetal``, ``benchmark`` and ``profile`` all give a kernel that runs on the emulated NeuronCore.
"""

from __future__ import annotations

import functools
from typing import Any

from torch_neuronx.nki import kernel as _kernel
from torch_neuronx.nki.beta1 import compiler, isa, language, typing
from torch_neuronx.nki.beta1.tile import Tile
from torch_neuronx.nki.beta1.typing import tensor

__all__ = [
    "BetaKernel",
    "baremetal",
    "benchmark",
    "compiler",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate_kernel",
    "tensor",
    "trace",
    "typing",
]


class BetaKernel(_kernel.Kernel):
    """A kernel whose arguments and results of instructions are tiles."""

    is_beta1 = True
    tensor_class = Tile

    def finish(self, returned: Any) -> Any:
        """Tiles that are returned from on chip are stored."""
        if isinstance(returned, (tuple, list)):
            return type(returned)(self.finish(value) for value in returned)
        if not isinstance(returned, Tile) or not returned.buffer.on_chip:
            return returned
        tile = returned.partition_first()
        out = language.ndarray(tile.shape, tile.dtype, buffer=language.shared_hbm)
        language.store(out, tile)
        return out


def jit(func: Any = None, **_: Any) -> Any:
    """Makes a kernel of a function; ``mode``, ``platform_target`` and the rest are accepted and ignored."""
    if func is None:
        return jit
    return BetaKernel(func.func, func.grid) if isinstance(func, _kernel.Kernel) else BetaKernel(func)


trace = jit


def baremetal(kernel: Any = None, **_: Any) -> Any:
    """On the device without a framework; here as :func:`jit`."""
    return jit if kernel is None else jit(kernel)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs ``kernel`` (possibly ``kernel[grid]``) on the emulated NeuronCore."""
    return (kernel if isinstance(kernel, BetaKernel) else jit(kernel))(*args, **kwargs)


class _Latency:
    def __init__(self, microseconds: float) -> None:
        self.microseconds = microseconds

    def get_latency_percentile(self, percentile: int) -> float:
        """Microseconds, modelled: the same for every percentile."""
        return self.microseconds


class _BenchmarkResult:
    def __init__(self, microseconds: float) -> None:
        self.nc_latency = _Latency(microseconds)


class _Benchmark:
    """A kernel that keeps its modelled latency in ``benchmark_result``."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel if isinstance(kernel, BetaKernel) else jit(kernel)
        self.benchmark_result: _BenchmarkResult | None = None
        functools.update_wrapper(self, self.kernel.func)

    def __getitem__(self, grid: Any) -> _Benchmark:
        return _Benchmark(self.kernel[grid])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.kernel(*args, **kwargs)
        self.benchmark_result = _BenchmarkResult(self.kernel.profile(*args, **kwargs).time_us)
        return result


def benchmark(kernel: Any = None, **_: Any) -> Any:
    """Runs a kernel and models its latency (``benchmark_result``), in microseconds."""
    return (lambda k: _Benchmark(k)) if kernel is None else _Benchmark(kernel)


profile = benchmark
