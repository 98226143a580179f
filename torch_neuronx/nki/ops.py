"""Op tokens: the operators and functions that instructions take as arguments.

A token is a name. In kernels it is a function of ``nki.language`` (``op=nl.add``) or, in beta-1 kernels, a NumPy ufunc (``op=np.add``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_ALIASES = {
    "max": "maximum",
    "min": "minimum",
    "sum": "add",
    "prod": "multiply",
    "all": "logical_and",
    "true_divide": "divide",
    "absolute": "abs",
    "bitwise_not": "invert",
    "bitwise_invert": "invert",
    "mean": "average",
    "arctan_": "arctan",
}


def token(value: Any) -> str:
    """The name of the op that ``value`` stands for.

    Raises:
        TypeError: ``value`` is no op.
    """
    name = getattr(value, "nki_op", None) or getattr(value, "__name__", None)
    if isinstance(value, str) or not isinstance(name, str) or not callable(value):
        raise TypeError(f"expected an op of nki.language such as nl.add, got {value!r}")
    return _ALIASES.get(name, name)


@dataclass(frozen=True)
class Alu:
    """An operator of the Vector engine. ``function`` takes and gives float32 tensors (int32 for ``bits``)."""

    function: Callable[..., torch.Tensor]
    kind: str  # arithmetic or bits
    reducible: bool = False
    identity: float | None = None
    exact: bool = False  # the PyTorch kernel rounds a float32 result once, so it may take and give 16-bit floats directly
    unary: bool = False
    since: int = 2


def _compare(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda a, b: function(a, b).to(torch.float32)


def _logical(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda a, b: function(torch.as_tensor(a) != 0, torch.as_tensor(b) != 0).to(torch.float32)


def _shift_right(a: torch.Tensor, b: Any) -> torch.Tensor:
    return torch.bitwise_right_shift(a, b)


def _abs_max(a: torch.Tensor, b: Any) -> torch.Tensor:
    b = torch.as_tensor(b, dtype=torch.float32)
    return torch.where(torch.as_tensor(a).abs() > b.abs(), a, b)


def _abs_min(a: torch.Tensor, b: Any) -> torch.Tensor:
    b = torch.as_tensor(b, dtype=torch.float32)
    return torch.where(torch.as_tensor(a).abs() < b.abs(), a, b)


def _pow(a: Any, b: Any) -> torch.Tensor:
    return torch.pow(a, b)


def _maximum(a: Any, b: Any) -> torch.Tensor:
    return torch.clamp_min(a, b) if not isinstance(b, torch.Tensor) else torch.maximum(torch.as_tensor(a, dtype=b.dtype), b)


def _minimum(a: Any, b: Any) -> torch.Tensor:
    return torch.clamp_max(a, b) if not isinstance(b, torch.Tensor) else torch.minimum(torch.as_tensor(a, dtype=b.dtype), b)


ALU: dict[str, Alu] = {
    "add": Alu(torch.add, "arithmetic", True, 0.0, exact=True),
    "subtract": Alu(torch.sub, "arithmetic", True, 0.0, exact=True),
    "multiply": Alu(torch.mul, "arithmetic", True, 1.0, exact=True),
    "maximum": Alu(_maximum, "arithmetic", True, -math.inf),
    "minimum": Alu(_minimum, "arithmetic", True, math.inf),
    "divide": Alu(torch.div, "arithmetic", exact=True),
    "power": Alu(_pow, "arithmetic"),
    "mod": Alu(torch.remainder, "arithmetic"),
    "fmod": Alu(torch.fmod, "arithmetic"),
    "equal": Alu(_compare(torch.eq), "arithmetic"),
    "not_equal": Alu(_compare(torch.ne), "arithmetic"),
    "greater": Alu(_compare(torch.gt), "arithmetic"),
    "greater_equal": Alu(_compare(torch.ge), "arithmetic"),
    "less": Alu(_compare(torch.lt), "arithmetic"),
    "less_equal": Alu(_compare(torch.le), "arithmetic"),
    "logical_and": Alu(_logical(torch.logical_and), "arithmetic", True, 1.0),
    "logical_or": Alu(_logical(torch.logical_or), "arithmetic", True, 0.0),
    "logical_xor": Alu(_logical(torch.logical_xor), "arithmetic", True, 0.0),
    "abs_max": Alu(_abs_max, "arithmetic", identity=0.0, since=4),
    "abs_min": Alu(_abs_min, "arithmetic", identity=math.inf, since=4),
    "bypass": Alu(lambda a, b=None: a, "arithmetic"),
    "abs": Alu(lambda a, b=None: a.abs(), "arithmetic", unary=True),
    "square": Alu(lambda a, b=None: a * a, "arithmetic", unary=True, since=4),
    "relu": Alu(lambda a, b=None: a.clamp_min(0), "arithmetic", unary=True, since=4),
    "rsqrt": Alu(lambda a, b=None: torch.rsqrt(a), "arithmetic", unary=True),
    "reciprocal": Alu(lambda a, b=None: torch.reciprocal(a), "arithmetic", unary=True),
    "bitwise_and": Alu(torch.bitwise_and, "bits", True, -1),
    "bitwise_or": Alu(torch.bitwise_or, "bits", True, 0),
    "bitwise_xor": Alu(torch.bitwise_xor, "bits", True, 0),
    "invert": Alu(lambda a, b=None: torch.bitwise_not(a), "bits", unary=True),
    "left_shift": Alu(torch.bitwise_left_shift, "bits"),
    "right_shift": Alu(_shift_right, "bits"),
}

COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")


def alu(name: str) -> Alu:
    """The row of an operator.

    Raises:
        ValueError: it is no operator of the Vector engine.
    """
    try:
        return ALU[name]
    except KeyError:
        raise ValueError(f"{name} is no ALU operator; there are {', '.join(ALU)}") from None
