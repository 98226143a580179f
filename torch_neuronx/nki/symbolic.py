"""Kernels in graphs with symbolic sizes: which sizes the outputs have, as expressions.

A kernel is traced for numbers, so how the sizes of its outputs follow from those of its arguments is found by trying: it is traced for the
example sizes, and once more for each symbol with another value. A size of an output that changed must equal a size of an argument in all
traces, which it then stands for. What cannot be explained, or traced, makes the symbol a constant of the graph. The operator gets the
expressions and compares them with the real sizes at each launch, so a wrong guess is an error and never a wrong shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_neuronx.nki import arrays
from torch_neuronx.nki.errors import NkiValidationError

if TYPE_CHECKING:
    from torch_neuronx.nki.kernel import Kernel, Spec
    from torch_neuronx.nki.trace import TracedKernel


def _dims(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape)


def is_symbolic(leaves: Sequence[torch.Tensor]) -> bool:
    return any(isinstance(n, torch.SymInt) for leaf in leaves for n in _dims(leaf))


def example(leaves: Sequence[torch.Tensor], values: dict[Any, int] | None = None) -> tuple[Spec, ...]:
    """The arguments at the example sizes of a graph, or where symbols have other values. Makes no guard."""
    from torch_neuronx.nki.kernel import Spec

    return tuple(Spec(tuple(_value(n, values or {}) for n in _dims(leaf)), arrays.dtype_of(leaf)) for leaf in leaves)


def _value(n: Any, values: dict[Any, int]) -> int:
    if not isinstance(n, torch.SymInt) or not n.node.has_hint():
        return int(n)
    expression = n.node.expr
    known = {symbol: values[symbol] for symbol in expression.free_symbols if symbol in values}
    if not known:
        return int(n.node.hint)
    hints = n.node.shape_env.backed_var_to_val
    return int(expression.xreplace({symbol: known.get(symbol, hints[symbol]) for symbol in expression.free_symbols}))


def output_sizes(kernel: Kernel, leaves: Sequence[torch.Tensor], structure: dict[str, Any], trace: Any) -> list[Any]:
    """The sizes of all output buffers, one after the other, as numbers and expressions of the sizes of ``leaves``.

    Args:
        trace: gives the TracedKernel for specs.
    """
    first: TracedKernel = trace(example(leaves))
    dims = [n for leaf in leaves for n in _dims(leaf) if isinstance(n, torch.SymInt)]
    symbols = dict.fromkeys(symbol for n in dims for symbol in sorted(n.node.expr.free_symbols, key=str))
    start = _flat(first)
    candidates = [[n for n in dims if int(n.node.hint) == size] for size in start]
    changed = [False] * len(start)
    for symbol in symbols:
        values = _other_values(leaves, symbol, trace)
        sizes = _flat(values[1]) if values is not None else []
        explained = len(sizes) == len(start)
        for k, (before, now) in enumerate(zip(start, sizes, strict=False)):
            candidates[k] = [n for n in candidates[k] if _value(n, values[0]) == now] if values else []
            changed[k] = changed[k] or before != now
            explained = explained and not (changed[k] and not candidates[k])
        if not explained or not _shows_whole_buffers(first):
            for n in dims:
                int(n)  # a guard: the graph holds for these sizes alone
            return start
    return [candidates[k][0] if changed[k] else size for k, size in enumerate(start)]


def _other_values(leaves: Sequence[torch.Tensor], symbol: Any, trace: Any) -> tuple[dict[Any, int], TracedKernel] | None:
    """Another value of ``symbol`` for which the kernel can be traced."""
    hint = next(n for leaf in leaves for n in _dims(leaf) if isinstance(n, torch.SymInt) and symbol in n.node.expr.free_symbols)
    value = int(hint.node.shape_env.backed_var_to_val[symbol])
    for other in (2 * value, value // 2, value + 1):
        if other >= 1 and other != value:
            try:
                return {symbol: other}, trace(example(leaves, {symbol: other}))
            except (NkiValidationError, AssertionError, ValueError, TypeError, IndexError, ZeroDivisionError):
                continue  # the kernel refuses this size
    return None


def _flat(traced: TracedKernel) -> list[int]:
    return [n for buffer in traced.output_buffers for n in buffer.shape]


def _shows_whole_buffers(traced: TracedKernel) -> bool:
    from torch_neuronx.nki.kernel import is_whole

    return all(is_whole(view) and view.shape == view.storage.shape for view in traced.outputs)
