"""Where the valid elements of a padded tensor are.

A *factor* is a size: a number, the name of a symbol, or an expression that is never padded, in parentheses. A dimension is a tuple of
factors, the outermost first: (8, "s1") are 8 rows of s1 elements in one dimension, as ``x.view(8 * s1)`` leaves them. An element is valid
when its coordinate along each padded factor is smaller than that symbol's real value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

Factor = int | str
Dim = tuple[Factor, ...]
Layout = tuple[Dim, ...]


class Refused(Exception):
    """The analysis cannot prove that padding is harmless. ``symbols``: those that must stay exact; none: all of them."""

    def __init__(self, text: str, symbols: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.text, self.symbols = text, frozenset(symbols)


def normal(dim: Iterable[Factor]) -> Dim:
    """Without ones, and neighbouring numbers as one."""
    found: list[Factor] = []
    for factor in dim:
        if factor == 1:
            continue
        if found and isinstance(factor, int) and isinstance(found[-1], int):
            found[-1] = found[-1] * factor
        else:
            found.append(factor)
    return tuple(found)


def symbols_of(layout: Iterable[Dim]) -> set[str]:
    return {factor for dim in layout for factor in dim if isinstance(factor, str)}


def free_symbols(value: Any) -> set[str]:
    """Names of the symbols in a number, a size or a tensor's shape."""
    if isinstance(value, torch.Tensor):
        return set().union(*(free_symbols(size) for size in value.shape), set())
    node = getattr(value, "node", None)
    return {str(symbol) for symbol in node.expr.free_symbols} if node is not None else set()


def monomial(size: Any) -> tuple[int, tuple[str, ...]] | None:
    """A size as a number times symbols, each as often as it occurs; None when it is none, as ``s0 + 1``."""
    if not isinstance(size, torch.SymInt):
        return int(size), ()
    coefficient, names = 1, []
    for part in _terms(size.node.expr):
        if part.is_Integer:
            coefficient *= int(part)
        elif part.is_Symbol:
            names.append(str(part))
        elif part.is_Pow and part.base.is_Symbol and part.exp.is_Integer and int(part.exp) > 0:
            names += [str(part.base)] * int(part.exp)
        else:
            return None
    return coefficient, tuple(sorted(names))


def _terms(expression: Any) -> Sequence[Any]:
    return expression.args if expression.is_Mul else (expression,)


def text(size: Any) -> str:
    """A size as Python source on the names of its symbols. Refused: it has another form than a polynomial."""
    if isinstance(size, int):
        return repr(int(size))
    if not isinstance(size, torch.SymInt):
        raise Refused(f"a number computed from sizes, {size}, is no whole one", free_symbols(size))
    expression = size.node.expr
    if not expression.is_polynomial(*expression.free_symbols) or any(atom.is_Float or (atom.is_Rational and not atom.is_Integer)
                                                                     for atom in expression.atoms() if atom.is_number):  # fmt: skip
        raise Refused(f"a size is {expression}", free_symbols(size))
    return str(expression)


def product(factors: Iterable[Factor]) -> str:
    return "*".join(str(factor) for factor in factors) or "1"


def agrees(dim: Dim, size: Any) -> bool:
    """Whether ``dim`` has ``size`` elements, whatever the symbols are."""
    coefficient, names = 1, []
    for factor in dim:
        if isinstance(factor, int):
            coefficient *= factor
        else:
            names.append(factor)
    found = monomial(size)
    if found is None:
        return len(dim) == 1 and dim[0] == f"({size.node.expr})"
    return (coefficient, tuple(sorted(names))) == found


class Order:
    """Guesses in which order the factors of a size like ``8*s1`` lie, from the dimensions that are neighbours in a graph's tensors.

    A wrong guess costs a refusal, where it meets a tensor that is laid out otherwise, never a result.
    """

    def __init__(self, shapes: Iterable[Sequence[Any]]) -> None:
        self.pairs: set[tuple[Factor, Factor]] = set()
        for shape in shapes:
            plain = [monomial(size) for size in shape]
            single: list[Factor | None] = [
                None if one is None or len(one[1]) > 1 or (one[1] and one[0] != 1) else (one[1][0] if one[1] else one[0]) for one in plain
            ]
            known = [factor for factor in single if factor != 1]
            self.pairs.update((a, b) for a, b in itertools.pairwise(known) if a is not None and b is not None)

    def dim(self, size: Any, bucketed: frozenset[str]) -> Dim:
        """The factors of ``size``."""
        found = monomial(size)
        if found is None:
            touched = free_symbols(size) & bucketed
            if touched:
                raise Refused(f"a size is {size.node.expr}", touched)
            return (f"({size.node.expr})",)
        coefficient, names = found
        factors: list[Factor] = [coefficient] if coefficient != 1 else []
        for name in names:
            at = next((i for i, other in enumerate(factors) if (name, other) in self.pairs), len(factors))
            factors.insert(at, name)
        return normal(factors)

    def layout(self, shape: Sequence[Any], bucketed: frozenset[str]) -> Layout:
        return tuple(self.dim(size, bucketed) for size in shape)


def regroup(layout: Layout, shape: Sequence[Any], bucketed: frozenset[str]) -> Layout:
    """The layout of ``view(shape)``: the same factors in the same order, in other dimensions."""
    rest: list[Factor] = list(reversed(normal(factor for dim in layout for factor in dim)))
    result: list[Dim] = []
    for size in shape:
        found = monomial(size)
        if found is None:  # an expression that is never padded
            opaque = f"({size.node.expr})"
            if not rest or rest[-1] != opaque:
                raise _split(layout, shape, bucketed)
            result.append((rest.pop(),))
            continue
        wanted, names = found[0], list(found[1])
        dim: list[Factor] = []
        while wanted != 1 or names:
            factor = rest.pop() if rest else None
            if isinstance(factor, str) and factor in names:
                names.remove(factor)
            elif isinstance(factor, int) and factor and wanted % factor == 0:
                wanted //= factor
            elif isinstance(factor, int) and wanted > 1 and factor % wanted == 0:
                rest.append(factor // wanted)
                factor, wanted = wanted, 1
            else:
                raise _split(layout, shape, bucketed)
            dim.append(factor)
        result.append(normal(dim))
    if any(factor != 1 for factor in rest):
        raise _split(layout, shape, bucketed)
    return tuple(result)


def _split(layout: Layout, shape: Sequence[Any], bucketed: frozenset[str]) -> Refused:
    return Refused(f"it splits padded sizes: {show(layout)} seen as {list(shape)}", symbols_of(layout) & bucketed)


def show(layout: Layout) -> str:
    return "[" + ", ".join(product(dim) for dim in layout) + "]"
