"""NumPy knows NKI's dtypes by name: ``np.dtype("bfloat16")``, ``x.astype(nl.float8_e4m3)``.

`ml_dtypes` brings the 16 and 8 bit floats. Packed types become unsigned integers of their size that remember their name.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

_ML = {
    "bfloat16": "bfloat16",
    "float8_e4m3": "float8_e4m3",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "float8_e8m0fnu": "float8_e8m0fnu",
}
_PACKED = {"float8_e5m2_x4": np.uint32, "float8_e4m3fn_x4": np.uint32, "float4_e2m1fn_x4": np.uint16}


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype for an NKI name."""
    if name in _ML:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), _ML[name]))
    if name in _PACKED:
        return np.dtype(_PACKED[name], metadata={"nki": name})
    return np.dtype("float32" if name == "tfloat32" else name)


class _Named:
    """What NumPy looks up for a name: an object with a ``dtype``."""

    def __init__(self, name: str) -> None:
        self.dtype = numpy_dtype(name)


def finfo(name: str) -> Any:
    """Limits of a floating dtype, by its NKI name."""
    kind = numpy_dtype(name)
    return importlib.import_module("ml_dtypes").finfo(kind) if name in _ML else np.finfo(kind)


def static_cast(array: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """An array as another dtype, by its NKI name or a NumPy dtype."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    return np.asarray(array).astype(numpy_dtype(name) if not isinstance(dtype, np.dtype) else dtype)


def sizeinbytes(dtype: Any) -> int:
    """Bytes of an element."""
    return numpy_dtype(dtype).itemsize if isinstance(dtype, str) else np.dtype(dtype).itemsize


def is_float_type(dtype: Any) -> bool:
    """Floating point, of any width?"""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    return name.startswith(("float", "bfloat", "tfloat"))


def __getattr__(name: str) -> Any:
    """Dtypes by their names, as ``neuron_dtypes`` has them."""
    if name in (*_ML, *_PACKED):
        return numpy_dtype(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Teaches NumPy the names that it does not know. Does nothing where `ml_dtypes` is not installed."""
    try:
        importlib.import_module("ml_dtypes")
    except ImportError:
        return
    for name in (*_ML, *_PACKED, "tfloat32"):
        try:
            np.dtype(name)
        except TypeError:
            np._core.sctypeDict[name] = type(name, (), {"dtype": numpy_dtype(name)})  # type: ignore[attr-defined]
