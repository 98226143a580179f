"""Conversions that lowerings share: PyTorch's type promotion, compute dtypes and broadcasting, on JAX arrays and Python numbers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_neuronx.lowering.dtypes import opmath, to_jax, to_torch
from torch_neuronx.lowering.table import CallInfo


def convert(value: Any, dtype: Any) -> Any:
    """PyTorch's conversion of an array or Python number to a JAX dtype."""
    from torch_neuronx.lowering.tracer import convert as convert_array

    if isinstance(value, (bool, int, float, complex)):
        return constant(value, dtype)
    if not hasattr(value, "dtype"):  # a symbolic size
        value = jnp.asarray(value)
    return convert_array(value, jnp.dtype(dtype))


def constant(value: Any, dtype: Any) -> Any:
    """A Python number as a 0-dim array. Whole numbers wrap, as in C."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.integer) and not isinstance(value, bool):
        bits = int(value) & ((1 << 8 * dtype.itemsize) - 1)
        return jnp.asarray(np.array(bits, f"u{dtype.itemsize}").view(dtype))
    if not jnp.issubdtype(dtype, jnp.complexfloating) and isinstance(value, complex):
        value = value.real
    return jnp.asarray(np.array(value).astype(dtype))


def broadcast(*values: Any) -> list[Any]:
    """Arrays of one shape."""
    shape = lax.broadcast_shapes(*(value.shape for value in values))
    return [expand(value, shape) for value in values]


def expand(value: Any, shape: Any) -> Any:
    """``value`` broadcast to ``shape``, aligned at the last dimension."""
    if value.shape == tuple(shape):
        return value
    missing = len(shape) - value.ndim
    kept = [dim for dim in range(value.ndim) if not (value.shape[dim] == 1 and shape[dim + missing] != 1)]
    squeezed = value.reshape([value.shape[dim] for dim in kept]) if len(kept) < value.ndim else value
    return lax.broadcast_in_dim(squeezed, tuple(shape), [dim + missing for dim in kept])


def result_dtype(call: CallInfo, index: int = 0) -> Any:
    """JAX dtype of the result, or of result ``index``."""
    out = call.out[index] if isinstance(call.out, (tuple, list)) else call.out
    return to_jax(out.dtype)


def wide(dtype: Any) -> Any:
    """The dtype that PyTorch computes in for a result of ``dtype``: float32 for the 16-bit floats."""
    return to_jax(opmath(to_torch(dtype)))


def widest(call: CallInfo) -> Any:
    """The real dtype for what PyTorch's kernels compute in double whatever the result is: the chip has no float64."""
    return jnp.dtype(jnp.float64 if call.target == "portable" else jnp.float32)


def inputs_dtype(call: CallInfo, count: int = 2) -> Any:
    """The promoted dtype of the first ``count`` arguments."""
    dtype = torch.result_type(*call.args[:2]) if count == 2 else torch.result_type(call.args[0], call.args[0])
    return to_jax(dtype)


def is_complex(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.complexfloating))


def is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def dim_of(dim: int, rank: int) -> int:
    """A dimension counted from 0."""
    return dim + rank if dim < 0 else dim


def dims_of(dims: Any, rank: int) -> list[int]:
    """Dimensions counted from 0; None or nothing means all."""
    if dims is None or rank == 0:
        return list(range(rank))
    if isinstance(dims, int):
        dims = [dims]
    return [dim_of(dim, rank) for dim in dims] if len(dims) else list(range(rank))
