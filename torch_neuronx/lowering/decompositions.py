"""Which of PyTorch's own decompositions stand in for a missing row of the table, and why an operator has neither."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

# Decompositions that lead to what cannot be lowered, or that are worse than the C++ composite.
_UNWANTED = frozenset(
    """
    aten::masked_select aten::masked_select.out aten::allclose aten::equal aten::item aten::is_nonzero
    """.split()
)


@functools.cache
def find(func: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """A callable on the arguments of ``func`` that makes only simpler calls."""
    from torch._decomp import decomposition_table

    if func.name() in _UNWANTED or func.namespace == "prims":  # the kernels of prims:: lead back to ATen
        return None
    if func in decomposition_table:
        return decomposition_table[func]
    key = torch._C.DispatchKey
    for composite in (key.CompositeImplicitAutograd, key.CompositeExplicitAutograd):
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite):
            return functools.partial(func._op_dk, composite)
    return None


# Reasons for families of operators, by what their name begins with.
_BY_NAME = (
    (
        ("aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::is_nonzero", "aten::allclose"),
        "the host needs its value, so the program ends here",
    ),
    (("aten::_cudnn", "aten::cudnn", "aten::miopen", "aten::_cuda", "aten::_mps", "aten::mkldnn", "aten::_mkldnn"), "another device's own"),
    (("aten::_sparse", "aten::sparse", "aten::_coalesce", "aten::_indices", "aten::_values"), "the chip has no sparse tensors"),
    (("aten::_nested", "aten::nested"), "the chip has no nested tensors"),
    (("aten::quantize", "aten::fake_quantize", "aten::dequantize", "aten::q_", "aten::_empty_affine"), "the chip has no quantized tensors"),
)


def why_not(func: torch._ops.OpOverload) -> str:
    """Why ``func`` has neither a row nor a decomposition."""
    if torch.Tag.dynamic_output_shape in func.tags:
        return "the shape of its result depends on data, and the compiler wants static shapes"
    for names, reason in _BY_NAME:
        if func.name().startswith(names):
            return reason
    if torch.Tag.data_dependent_output in func.tags:
        return "the host needs its value, so the program ends here"
    if not any("Tensor" in str(argument.type) for argument in func._schema.arguments + func._schema.returns):
        return "it does not work on tensors"
    return "no row of the lowering table and no decomposition of PyTorch covers it"
