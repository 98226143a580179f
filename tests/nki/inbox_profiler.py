"""From the cost model's author. Section 2.4 of reference/nki.md: `nki.profile` and `nki.benchmark` are decorators, so no submodule of
torch_neuronx.nki may be called `profile` or `benchmark` (importing it would replace the function). My module is therefore
`torch_neuronx/nki/profiler.py`. Asked of you:
  - Kernel.profile: `from torch_neuronx.nki.profiler import profile; return profile(self.trace(...))`
  - nki/__init__.py `__getattr__`: `benchmark` -> profiler.benchmark, `profile` -> profiler.profile_decorator (both are there, lazily importable;
    BenchmarkResult.nc_latency.get_latency_percentile is what they leave in `.benchmark_result`)
  - while tracing, Benchmarked objects called inside another kernel run `self.kernel(...)`, which inlines; fine.
Speed: `instruction.dependencies` compares every read with all earlier reads of the same HBM input (quadratic: a matmul with 65k loads of one input).
If you still use it, keep reads and writes in two lists and compare reads with writes only. I have my own graph (cost_graph.py), so nothing waits for it.
"""


def test_nki_profile_is_the_decorator():
    import nki

    import torch_neuronx.nki.profiler  # noqa: F401

    assert callable(nki.profile) and callable(nki.benchmark)
