"""What loading the backend adds to `import torch`: measured inside a fresh process, in turns with a process that does not load it."""

import statistics

from benchmarks.table import Row, Rows, group
from benchmarks.timing import run_child

BAR_MS = 60.0

# With PyTorch's own autoload off, importing the package does what the entry point would.
LOAD = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.perf_counter()
if {load}:
    import torch_neuronx
took = time.perf_counter() - start
unwanted = sorted(m for m in set(sys.modules) - before if m in ("torch._dynamo", "jax"))
print(json.dumps({{"seconds": took, "unwanted": unwanted}}))
"""


@group("autoload")
def autoload(effort: float) -> Rows:
    loads, printed, unwanted = [], 0, set()
    for _ in range(max(1, int(15 * effort))):
        for load in (True, False):
            child = run_child("-c", LOAD.format(load=load), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
            if load:
                loads.append(child["seconds"] * 1e3)
                printed += len(child["printed"])
                unwanted |= set(child["unwanted"])
    yield Row("load torch_neuronx after torch", statistics.median(loads), "ms", BAR_MS, f"{min(loads):.0f} to {max(loads):.0f} ms")
    yield Row("bytes printed", printed, "B", 0.0)
    yield Row("unwanted modules (torch._dynamo, jax)", len(unwanted), "", 0.0, ", ".join(sorted(unwanted)))
