"""``python -m benchmarks.nki_kernels`` writes docs/nki-kernels.md: the kernel library with its modelled time and utilisation on trn2 and
trn3.

``--check`` compares with the page instead and fails when it differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from torch_neuronx.nki import kernels
from torch_neuronx.nki.profiler import Profile

PAGE = Path(__file__).resolve().parents[1] / "docs" / "nki-kernels.md"
TARGETS = ("trn2", "trn3")
_ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma")
BF16, F32, I32, FP8 = torch.bfloat16, torch.float32, torch.int32, torch.float8_e5m2


def _t(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# Kernel, what it is asked for, its arguments and options.
CASES: list[tuple[Any, str, tuple[Any, ...], dict[str, Any]]] = [
    (kernels.matmul, "2048 x 2048 x 2048 bf16", (_t(2048, 2048), _t(2048, 2048)), {}),
    (kernels.matmul_fp8, "2048 x 2048 x 2048 fp8", (_t(2048, 2048, dtype=FP8), _t(2048, 2048, dtype=FP8)), {}),
    (kernels.softmax, "2048 rows of 2048, bf16", (_t(2048, 2048),), {}),
    (kernels.rms_norm, "2048 rows of 4096, bf16", (_t(2048, 4096), _t(4096)), {}),
    (kernels.layer_norm, "2048 rows of 4096, bf16", (_t(2048, 4096), _t(4096), _t(4096)), {}),
    (kernels.rope, "2048 tokens, 8 heads of 128, bf16", (_t(2048, 8, 128), _t(2048, 64), _t(2048, 64)), {}),
    (kernels.flash_attention, "1 head of 128, 2048 tokens, causal, bf16", (_t(1, 2048, 128),) * 3, {"causal": True}),
    (
        kernels.flash_attention_backward,
        "1 head of 128, 2048 tokens, causal, bf16",
        (*(_t(1, 2048, 128),) * 5, _t(1, 2048, 1, dtype=F32)),
        {"causal": True},
    ),
    (
        kernels.paged_attention,
        "4 sequences of up to 2048, 8 heads on 2, D 128, blocks of 16, bf16",
        (_t(4, 8, 128), *(_t(1024, 16, 2, 128),) * 2, _t(4, 128, dtype=I32), _t(4, 1, dtype=I32)),
        {},
    ),
    (kernels.swiglu_mlp, "512 tokens, H 2048, F 4096, bf16", (_t(512, 2048), _t(2048, 4096), _t(2048, 4096), _t(4096, 2048)), {}),
    (
        kernels.moe_grouped_matmul,
        "8 blocks of 128, 8 experts, 1024 x 2048, bf16",
        (_t(512, 1024), _t(8, 1024, 2048), _t(1024, 1, dtype=I32), _t(8, 1, dtype=I32)),
        {},
    ),
    (kernels.cross_entropy, "512 rows of 32768 classes, bf16", (_t(512, 32768), _t(512, 1, dtype=I32)), {}),
    (
        kernels.cross_entropy_backward,
        "512 rows of 32768 classes, bf16",
        (_t(512, 32768), _t(512, 1, dtype=I32), _t(512, 1, dtype=F32), _t(512, 1, dtype=F32)),
        {},
    ),
    (
        kernels.selective_scan,
        "512 channels, 16 states, 2048 steps, fp32",
        (*(_t(1, 512, 2048, dtype=F32),) * 2, _t(512, 16, dtype=F32), *(_t(1, 16, 2048, dtype=F32),) * 2),
        {},
    ),
    (kernels.conv2d, "256 to 256 channels, 3 x 3, 56 x 56, padding 1, bf16", (_t(1, 256, 56, 56), _t(256, 256, 3, 3)), {"padding": 1}),
    (kernels.topk, "k 64 of 8192, 128 rows, fp32", (_t(128, 8192, dtype=F32),), {"k": 64}),
]

_INTRO = """# NKI kernel library

`torch_neuronx.nki.kernels` holds kernels that this project wrote in NKI. They use its public names only, in the ordinary Python that NKI
0.7 traces; they were not tried with the vendor's `nki` package. Call them with CPU or `neuron` tensors; each docstring gives shapes and
dtypes. All are tested against PyTorch (`tests/nki/kernels/`).

```python
import torch
from torch_neuronx.nki import kernels

x = torch.randn(256, 512, dtype=torch.bfloat16, device="neuron")
y = kernels.softmax(x)
print(kernels.softmax.profile(x, target="trn2"))  # modelled time, what bounds it, utilisation
```

`scaled_dot_product_attention` and `rms_norm` of PyTorch go to the kernels inside an explicit switch, on `neuron` tensors, where the
kernels can do what is asked (no mask, no dropout, heads of at most 128 for attention; one dimension and a weight for RMS norm).
Everything else goes to PyTorch as before:

```python
import torch
from torch_neuronx.nki import kernels

q = torch.randn(1, 8, 256, 64, device="neuron", requires_grad=True)
with kernels.route("sdpa", "rms_norm") as routed:
    out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
out.sum().backward()  # by the backward kernel
print(routed)  # {'scaled_dot_product_attention': 1}
```

## Modelled time and utilisation

**Modelled, not measured on hardware**, by the cost model that [nki-calibration.md](nki-calibration.md) compares with published times. One
NeuronCore, inputs and outputs in HBM. "roofline" is the share of the peak (tensor operations or HBM bandwidth, whichever binds) that is
reached. Written by `python -m benchmarks.nki_kernels`; a test checks that it is current.

| kernel | size | target | time us | bound | tensor % | vector % | scalar % | gpsimd % | dma % | roofline % |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def row(name: str, size: str, profile: Profile) -> str:
    shares = " | ".join(f"{100 * profile.utilization[engine]:.0f}" for engine in _ENGINES)
    cells = [f"`{name}`", size, profile.target.name, f"{profile.time_us:.1f}", profile.bound, shares, f"{100 * profile.roofline.share:.0f}"]
    return f"| {' | '.join(cells)} |"


def page() -> str:
    lines = []
    for kernel, size, args, options in CASES:
        for target in TARGETS:
            lines.append(row(kernel.__name__, size, kernel.profile(*args, **options, target=target)))
            print(lines[-1], file=sys.stderr, flush=True)
    return _INTRO + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nki_kernels", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing it")
    args = parser.parse_args()
    text = page()
    if args.check:
        return text != PAGE.read_text()
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
