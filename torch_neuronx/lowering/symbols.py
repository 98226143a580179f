"""Symbolic sizes: PyTorch's symbols (sympy) as dimension variables of JAX's shape polymorphism."""

from __future__ import annotations

from typing import Any

import torch


class Symbols:
    """The symbols of one Program, each with its JAX dimension of the same name."""

    def __init__(self, program: Any) -> None:
        from jax import export

        found: dict[str, Any] = {}
        for item in program.inputs:
            for size in item.meta.sizes:
                if isinstance(size, torch.SymInt):
                    found.update({str(symbol): symbol for symbol in size.node.expr.free_symbols})
        names = sorted(found)
        dims = export.symbolic_shape(", ".join(names)) if names else ()
        self.by_symbol = {found[name]: dim for name, dim in zip(names, dims, strict=True)}

    def dim(self, size: Any) -> Any:
        """A size as JAX wants it: an int, or an expression of dimension variables."""
        if not isinstance(size, torch.SymInt):
            return size
        expression = size.node.expr
        if expression.is_number:
            return int(expression)
        return _evaluate(expression, self.by_symbol)

    def dims(self, sizes: Any) -> tuple[Any, ...]:
        return tuple(self.dim(size) for size in sizes)


def _evaluate(expression: Any, known: dict[Any, Any]) -> Any:
    """A sympy expression with JAX dimensions in place of the symbols."""
    if expression in known:
        return known[expression]
    if expression.is_Integer:
        return int(expression)
    parts = [_evaluate(part, known) for part in expression.args]
    kind = type(expression).__name__
    if kind == "Add":
        return sum(parts[1:], parts[0])
    if kind == "Mul":
        result = parts[0]
        for part in parts[1:]:
            result = result * part
        return result
    if kind == "Pow":
        return parts[0] ** parts[1]
    if kind in ("FloorDiv", "CleanDiv"):
        return parts[0] // parts[1]
    if kind in ("Mod", "PythonMod"):
        return parts[0] % parts[1]
    if kind in ("Max", "Min"):
        import jax

        return (jax.core.max_dim if kind == "Max" else jax.core.min_dim)(*parts)
    raise NotImplementedError(f"a size of the form {expression} has no counterpart in StableHLO's shapes")
