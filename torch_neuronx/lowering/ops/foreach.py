"""``_foreach_*``: the row of the single operator, list item by list item. Numbers are arrays that come with each launch, so that an
optimizer's changing step does not make another module; PyTorch's own composites over single tensors would look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_neuronx.lowering.table import CallInfo, Lowering, put, table_so_far

FAMILY = "foreach"

# Overload of the list operator -> overloads of the single one, the first that has a row.
_SINGLE = {
    "": ("",),
    "List": (".Tensor", ".Tensor_Tensor", ""),
    "Scalar": (".Scalar", ".Tensor_Scalar", ".Tensor", ""),
    "ScalarList": (".Scalar", ".Tensor_Scalar", ".Tensor", ""),
    "Tensor": (".Tensor", ""),
    "ScalarAndTensor": (".Scalar",),
}
_NAMES = """
    abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma log log10 log1p
    log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc
""".split()


def _each(row: Lowering) -> Callable[..., Any]:
    def lowered(call: CallInfo, *args: Any, **kwargs: Any) -> list[Any]:
        results = []
        for index, out in enumerate(call.out):
            items, metas = (tuple(_item(arg, index) for arg in given) for given in (args, call.args))
            results.append(row.function(*([CallInfo(metas, out, call.target)] if row.wants_call else []), *items, **kwargs))
        return results

    return lowered


def _item(arg: Any, index: int) -> Any:
    return arg[index] if isinstance(arg, (list, tuple)) else arg


def _single(name: str, kind: str) -> Lowering:
    """The row of the operator on one tensor."""
    rows = (table_so_far().get(f"aten::{name}{single}") for single in _SINGLE[kind])
    return next(row for row in rows if row is not None)


for _name in _NAMES:
    for _overload in getattr(torch.ops.aten, f"_foreach_{_name}").overloads():
        _kind = "" if _overload == "default" else _overload
        if _kind in _SINGLE and not (_kind == "Tensor" and _name.startswith("addc")):  # whose numbers are on the host
            put(f"_foreach_{_name}{'.' if _kind else ''}{_kind}", _each(_single(_name, _kind)), FAMILY, call=True)
