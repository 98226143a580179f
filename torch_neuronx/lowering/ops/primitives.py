"""``prims::``, what PyTorch's Python decompositions end in. Their arguments are already of one dtype and shape."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from torch_neuronx.lowering.dtypes import to_jax
from torch_neuronx.lowering.promotion import constant, convert, result_dtype, wide
from torch_neuronx.lowering.table import CallInfo, lowers, put, table_so_far

FAMILY = "primitives"

# prims::x -> the row of ATen that it is.
_AS_ATEN = {
    **{
        name: name
        for name in """
        abs acos acosh asin asinh atan atanh cos cosh digamma erf erfc exp expm1 exp2 isfinite lgamma log log1p log2 log10 neg
        reciprocal round sign sin sinh sqrt rsqrt tan tanh trunc ceil floor fill complex signbit bitwise_not conj_physical
        igamma igammac hypot nextafter gcd lcm
        frexp
        """.split()
    },
    "bessel_i0": "i0",
    "bessel_i0e": "special_i0e",
    "bessel_i1": "special_i1",
    "bessel_i1e": "special_i1e",
    "erf_inv": "erfinv",
    "erfcx": "special_erfcx",
    "ndtri": "special_ndtri",
    "zeta": "special_zeta",
    "atan2": "atan2",
    "bitwise_and": "bitwise_and.Tensor",
    "bitwise_or": "bitwise_or.Tensor",
    "bitwise_xor": "bitwise_xor.Tensor",
    "div": "div.Tensor",
    "eq": "eq.Tensor",
    "fmax": "fmax",
    "fmin": "fmin",
    "fmod": "fmod.Tensor",
    "ge": "ge.Tensor",
    "gt": "gt.Tensor",
    "le": "le.Tensor",
    "lt": "lt.Tensor",
    "maximum": "maximum",
    "minimum": "minimum",
    "mul": "mul.Tensor",
    "ne": "ne.Tensor",
    "pow": "pow.Tensor_Tensor",
    "remainder": "remainder.Tensor",
    "shift_left": "bitwise_left_shift.Tensor",
    "shift_right_arithmetic": "bitwise_right_shift.Tensor",
    "add": "add.Tensor",
    "sub": "sub.Tensor",
    "where": "where.self",
    "cat": "cat",
    "rev": "flip",
}
for _prim, _name in _AS_ATEN.items():
    _rows = table_so_far()
    _name = "fill.Scalar" if _name == "fill" else "frexp.Tensor" if _name == "frexp" else _name
    _row = _rows.get(f"aten::{_name}") or _rows.get(f"aten::{_name}.Tensor")
    if _row is not None and hasattr(torch.ops.prims, _prim):
        put(f"prims::{_prim}", _row.function, FAMILY, call=_row.wants_call)


@lowers("prims::cbrt", call=True)
def _cbrt(call: CallInfo, x: Any) -> Any:
    return convert(lax.cbrt(convert(x, wide(x.dtype))), result_dtype(call))


@lowers("prims::imag")
def _imag(x: Any) -> Any:
    return x.imag


@lowers("prims::real")
def _real(x: Any) -> Any:
    return x.real


@lowers("prims::convert_element_type")
def _convert_element_type(x: Any, dtype: torch.dtype) -> Any:
    return convert(x, to_jax(dtype))


@lowers("prims::broadcast_in_dim")
def _broadcast_in_dim(x: Any, shape: Any, dims: Any) -> Any:
    kept = [place for place in range(x.ndim) if not (x.shape[place] == 1 and shape[dims[place]] != 1)]
    squeezed = x.reshape([x.shape[place] for place in kept])
    return lax.broadcast_in_dim(squeezed, tuple(shape), [dims[place] for place in kept])


@lowers("prims::collapse_view", "prims::collapse", "prims::split_dim", "prims::squeeze", "prims::reshape", call=True)
def _reshaped(call: CallInfo, x: Any, *_: Any) -> Any:
    return x.reshape(tuple(call.out.shape))


@lowers("prims::transpose")
def _transpose(x: Any, order: Any) -> Any:
    return lax.transpose(x, list(order))


@lowers("prims::view_of", "prims::clone", "prims::copy_strided")
def _same(x: Any, *_: Any, **__: Any) -> Any:
    return x


@lowers("prims::slice")
def _slice(x: Any, starts: Any, limits: Any, strides: Any = None) -> Any:
    return lax.slice(x, list(starts), list(limits), list(strides) if strides else None)


@lowers("prims::slice_in_dim")
def _slice_in_dim(x: Any, start: int, limit: int, stride: int = 1, axis: int = 0) -> Any:
    return lax.slice_in_dim(x, start, limit, stride, axis)


@lowers("prims::copy_to")
def _copy_to(x: Any, source: Any) -> Any:
    return convert(source, x.dtype)


@lowers("prims::iota", call=True)
def _iota(call: CallInfo, length: int, *, start: int, step: int, dtype: torch.dtype, **_: Any) -> Any:
    out = to_jax(dtype)
    return (lax.iota(jnp.int64, length) * step + start).astype(out)


@lowers("prims::empty_strided", "prims::empty_permuted", call=True)
def _empty(call: CallInfo, *_: Any, **__: Any) -> Any:
    return jnp.zeros(tuple(call.out.shape), result_dtype(call))


@lowers("prims::scalar_tensor", call=True)
def _scalar_tensor(call: CallInfo, value: Any, **_: Any) -> Any:
    return constant(value, result_dtype(call))


def _reduce(function: Any) -> Any:
    def lowered(call: CallInfo, x: Any, dims: Any = None, *_: Any, **__: Any) -> Any:
        out = result_dtype(call)
        axes = tuple(range(x.ndim)) if dims is None else tuple(dims)
        return convert(function(convert(x, wide(out)) if function in (jnp.sum, jnp.prod) else x, axes), out)

    return lowered


for _prim, _function in {"sum": jnp.sum, "prod": jnp.prod, "amax": jnp.max, "amin": jnp.min, "xor_sum": None}.items():
    if _function is not None:
        put(f"prims::{_prim}", _reduce(_function), FAMILY, call=True)


@lowers("prims::var", call=True)
def _var(call: CallInfo, x: Any, dims: Any, correction: float = 1, *, output_dtype: Any = None) -> Any:
    from torch_neuronx.lowering.ops.reduction import moments

    axes = list(range(x.ndim)) if dims is None else list(dims)
    variance, _ = moments(convert(x, wide(x.dtype)), axes, correction)
    return convert(variance.reshape(tuple(call.out.shape)), result_dtype(call))
