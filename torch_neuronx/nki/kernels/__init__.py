"""Kernels in NKI, written for this project, on its public names only.

They take and return tensors like any ``@nki.jit`` kernel; docs/nki-kernels.md lists them with their modelled utilisation.
"""

from torch_neuronx.nki.kernels.conv2d import conv2d
from torch_neuronx.nki.kernels.cross_entropy import cross_entropy, cross_entropy_backward
from torch_neuronx.nki.kernels.flash_attention import flash_attention
from torch_neuronx.nki.kernels.flash_attention_backward import flash_attention_backward
from torch_neuronx.nki.kernels.functional import attention, route
from torch_neuronx.nki.kernels.matmul import matmul, matmul_fp8
from torch_neuronx.nki.kernels.moe import expert_blocks, moe_grouped_matmul
from torch_neuronx.nki.kernels.norms import layer_norm, rms_norm, softmax
from torch_neuronx.nki.kernels.paged_attention import paged_attention
from torch_neuronx.nki.kernels.rope import rope
from torch_neuronx.nki.kernels.selective_scan import selective_scan
from torch_neuronx.nki.kernels.swiglu import swiglu_mlp
from torch_neuronx.nki.kernels.topk import topk

__all__ = [
    "attention",
    "conv2d",
    "cross_entropy",
    "cross_entropy_backward",
    "expert_blocks",
    "flash_attention",
    "flash_attention_backward",
    "layer_norm",
    "matmul",
    "matmul_fp8",
    "moe_grouped_matmul",
    "paged_attention",
    "rms_norm",
    "rope",
    "route",
    "selective_scan",
    "softmax",
    "swiglu_mlp",
    "topk",
]
