"""The dtypes of NKI: names, sizes, and how a value is stored in host memory.

A dtype is its name, a ``str``, as AWS documents it: ``nl.bfloat16 == "bfloat16"``. :func:`dtype` accepts what kernels and callers use for
one (names, NumPy and PyTorch dtypes, JAX scalar types) and gives the :class:`DType` behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class DType:
    """One dtype. ``storage`` is the PyTorch dtype of the memory; unsigned and packed types are stored as signed integers of their size,
    and Trainium's e4m3 as bytes, because PyTorch has no arithmetic for them."""

    name: str
    bytes: int
    kind: str  # float, int, uint, bool or packed
    storage: torch.dtype
    torch_dtype: torch.dtype | None  # the public PyTorch dtype of the same values, if there is one
    lanes: int = 1  # values in an element

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint", "bool")

    def __str__(self) -> str:
        return self.name


def _row(name: str, size: int, kind: str, storage: torch.dtype, torch_dtype: torch.dtype | None, lanes: int = 1) -> tuple[str, DType]:
    return name, DType(name, size, kind, storage, torch_dtype, lanes)


DTYPES: dict[str, DType] = dict(
    [
        _row("bool", 1, "bool", torch.uint8, torch.bool),
        _row("int8", 1, "int", torch.int8, torch.int8),
        _row("int16", 2, "int", torch.int16, torch.int16),
        _row("int32", 4, "int", torch.int32, torch.int32),
        _row("uint8", 1, "uint", torch.uint8, torch.uint8),
        _row("uint16", 2, "uint", torch.int16, torch.uint16),
        _row("uint32", 4, "uint", torch.int32, torch.uint32),
        _row("float16", 2, "float", torch.float16, torch.float16),
        _row("bfloat16", 2, "float", torch.bfloat16, torch.bfloat16),
        _row("float32", 4, "float", torch.float32, torch.float32),
        _row("tfloat32", 4, "float", torch.float32, None),
        _row("float8_e4m3", 1, "float", torch.uint8, None),
        _row("float8_e4m3fn", 1, "float", torch.float8_e4m3fn, torch.float8_e4m3fn),
        _row("float8_e5m2", 1, "float", torch.float8_e5m2, torch.float8_e5m2),
        _row("float8_e8m0fnu", 1, "float", torch.float8_e8m0fnu, torch.float8_e8m0fnu),
        _row("float8_e5m2_x4", 4, "packed", torch.int32, None, 4),
        _row("float8_e4m3fn_x4", 4, "packed", torch.int32, None, 4),
        _row("float4_e2m1fn_x4", 2, "packed", torch.int16, None, 4),
    ]
)

_ALIASES = {
    "bool_": "bool",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "tf32": "tfloat32",
    "float8e4": "float8_e4m3",
    "float8e5": "float8_e5m2",
    "float": "float32",
    "int": "int32",
}
_FROM_TORCH = {row.torch_dtype: row for row in DTYPES.values() if row.torch_dtype is not None}
_UNSUPPORTED = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex64": "two float32 tensors"}


def dtype(value: Any) -> DType:
    """The DType that ``value`` names: a name, a PyTorch or NumPy dtype, a NumPy or JAX scalar type, ``float``, ``int`` or ``bool``.

    Raises:
        ValueError: NKI has no such dtype (``float64``, ``int64``...). The message says what to convert to.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, torch.dtype):
        row = _FROM_TORCH.get(value)
        name = str(value).removeprefix("torch.")
    else:
        name = value if isinstance(value, str) else _name_of(value)
        row = DTYPES.get(_ALIASES.get(name, name))
    if row is None:
        remedy = f" Convert it to {_UNSUPPORTED[name]} first." if name in _UNSUPPORTED else f" NKI has {', '.join(DTYPES)}."
        raise ValueError(f"Unsupported dtype {name!r}.{remedy}")
    return row


def _name_of(value: Any) -> str:
    if isinstance(value, type) and value in (bool, int, float):
        return value.__name__
    inner = getattr(value, "dtype", None)  # jnp.bfloat16 and other scalar types carry their dtype
    if inner is not None and not isinstance(value, type):
        return _name_of(inner)
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    return str(name if isinstance(name, str) else value)
