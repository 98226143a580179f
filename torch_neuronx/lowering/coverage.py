"""What lowers of PyTorch's operators, by overload and by the functions that users call.

Two lists. *Overloads*: every ``aten::`` overload of the dispatcher, by how it would be lowered; nothing is run. *Functions*: PyTorch's own
op table (OpInfo), its first sample of each traced; needs PyTorch's test dependencies (``expecttest``) and takes minutes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from torch_neuronx.lowering import decompositions
from torch_neuronx.lowering.schema import functional_overload
from torch_neuronx.lowering.table import NotLowered, table


@dataclass(frozen=True)
class Verdict:
    """How ``name`` lowers: ``row`` of the table, ``in place or out=`` of what lowers, ``decomposition``, ``view``, ``traced`` (a function),
    or ``none``, with the reason. ``family``: of the row."""

    name: str
    how: str
    reason: str = ""
    family: str = ""


def overload_verdict(func: torch._ops.OpOverload) -> Verdict:
    """How one overload would be lowered; a decomposition's inner calls are not followed."""
    name = func.name()
    row = table().get(name)
    if row is not None:
        return Verdict(name, "row", family=row.family)
    if name == "aten::as_strided" or torch.Tag.inplace_view in func.tags:
        return Verdict(name, "view", family="shape")
    if func._schema.is_mutable:
        functional = functional_overload(func)
        if functional is not None:
            inner = overload_verdict(functional)
            return Verdict(name, "none" if inner.how == "none" else "in place or out=", inner.reason, inner.family)
    if decompositions.find(func) is not None:
        return Verdict(name, "decomposition")
    return Verdict(name, "none", decompositions.why_not(func))


def overloads() -> Iterator[Verdict]:
    """A verdict for every ``aten::`` overload that works on tensors."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        if namespace != "aten":
            continue
        base, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        func = getattr(packet, overload or "default", None)
        if func is not None and any("Tensor" in str(item.type) for item in [*func._schema.arguments, *func._schema.returns]):
            yield overload_verdict(func)


def functions(dtype: torch.dtype = torch.float32) -> Iterator[Verdict]:
    """A verdict for every entry of PyTorch's op table that the CPU has in ``dtype``: its first sample, forward."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if op.supports_dtype(dtype, "cpu"):
            sample = next(iter(op.sample_inputs("cpu", dtype)), None)
            if sample is not None:
                yield _traced(op, sample)


def _traced(op: Any, sample: Any) -> Verdict:
    from torch_neuronx.lowering.emit import trace_function

    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]

    def call(*given: torch.Tensor) -> Any:
        filled = list(leaves)
        for index, tensor in zip(places, given, strict=True):
            filled[index] = tensor
        value, args, kwargs = tree_unflatten(filled, spec)
        return tree_leaves(op(value, *args, **kwargs))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace_function(call, [leaves[index] for index in places])
    except NotLowered as error:
        return Verdict(op.full_name, "none", f"{error.op}: {error.reason}")
    except Exception as error:
        return Verdict(op.full_name, "none", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return Verdict(op.full_name, "traced")


def report(verdicts: list[Verdict]) -> str:
    """Counts, then the reasons, most frequent first, with the names."""
    counts = Counter(verdict.how for verdict in verdicts)
    lowered = len(verdicts) - counts["none"]
    lines = [f"{lowered} of {len(verdicts)} lower ({100 * lowered / max(1, len(verdicts)):.1f} %)"]
    lines += [f"  {count:>5}  {how}" for how, count in counts.most_common() if how != "none"]
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.how == "none":
            reasons.setdefault(verdict.reason, []).append(verdict.name)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        shown = " ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        lines += [f"{len(names):>5}  {reason}", f"       {shown}"]
    return "\n".join(lines)
