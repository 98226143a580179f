"""Matrix products. 16-bit floats accumulate in float32."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.promotion import convert, expand, is_complex, result_dtype, wide
from torch_neuronx.lowering.table import CallInfo, lowers


def product(a: Any, b: Any, contract: tuple[int, int], batch: int = 0) -> Any:
    """``a`` times ``b`` over one dimension of each; the first ``batch`` dimensions of both are batches. The result is wide."""
    dims = (((contract[0],), (contract[1],)), (tuple(range(batch)), tuple(range(batch))))
    if a.dtype == jnp.bool_:
        return lax.dot_general(a.astype(jnp.int32), b.astype(jnp.int32), dims) != 0
    return lax.dot_general(a, b, dims, preferred_element_type=wide(a.dtype))


def _combined(call: CallInfo, x: Any, result: Any, beta: Any, alpha: Any) -> Any:
    """beta * x + alpha * result; with beta 0 whatever is in x, NaN too, does not count."""
    out = result_dtype(call)
    if not _is(alpha, 1):
        result = result * convert(alpha, result.dtype)
    if not _is(beta, 0):
        x = expand(convert(x, result.dtype), result.shape)
        result = result + (x if _is(beta, 1) else x * convert(beta, x.dtype))
    return convert(result, out)


def _is(value: Any, number: int) -> bool:
    return isinstance(value, (int, float, complex)) and value == number


@lowers("mm")
def _mm(a: Any, b: Any) -> Any:
    return convert(product(a, b, (1, 0)), a.dtype)


@lowers("mm.dtype", call=True)
def _mm_dtype(call: CallInfo, a: Any, b: Any, _dtype: Any) -> Any:
    return convert(product(a, b, (1, 0)), result_dtype(call))


@lowers("bmm")
def _bmm(a: Any, b: Any) -> Any:
    return convert(product(a, b, (2, 1), batch=1), a.dtype)


@lowers("mv")
def _mv(a: Any, x: Any) -> Any:
    return convert(product(a, x, (1, 0)), a.dtype)


@lowers("dot")
def _dot(a: Any, b: Any) -> Any:
    return convert(product(a, b, (0, 0)), a.dtype)


@lowers("vdot")
def _vdot(a: Any, b: Any) -> Any:
    return _dot(jnp.conj(a) if is_complex(a) else a, b)


@lowers("addmm", call=True)
def _addmm(call: CallInfo, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _combined(call, x, product(a, b, (1, 0)), beta, alpha)


@lowers("baddbmm", call=True)
def _baddbmm(call: CallInfo, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _combined(call, x, product(a, b, (2, 1), batch=1), beta, alpha)


@lowers("addbmm", call=True)
def _addbmm(call: CallInfo, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    dims = (((0, 2), (0, 1)), ((), ()))
    return _combined(call, x, lax.dot_general(a, b, dims, preferred_element_type=wide(a.dtype)), beta, alpha)


@lowers("addmv", call=True)
def _addmv(call: CallInfo, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _combined(call, x, product(a, b, (1, 0)), beta, alpha)


@lowers("addr", call=True)
def _addr(call: CallInfo, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    out = result_dtype(call)
    a, b = convert(a, wide(out)), convert(b, wide(out))
    outer = a[:, None] & b[None, :] if a.dtype == jnp.bool_ else a[:, None] * b[None, :]
    if outer.dtype == jnp.bool_:
        alpha_on, beta_on = bool(alpha), bool(beta)
        outer = outer if alpha_on else jnp.zeros_like(outer)
        return outer | expand(x, outer.shape) if beta_on else outer
    return _combined(call, x, outer, beta, alpha)


@lowers("linear")
def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    result = product(x, weight, (x.ndim - 1, weight.ndim - 1))
    if bias is not None:
        result = result + convert(bias, result.dtype)
    return convert(result, x.dtype)


@lowers("_addmm_activation", call=True)
def _addmm_activation(call: CallInfo, x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False) -> Any:
    from torch_neuronx.lowering.ops.activations import gelu_of

    summed = _combined(call, x, product(a, b, (1, 0)), beta, alpha)
    work = convert(summed, wide(summed.dtype))
    return convert(gelu_of(work, "tanh") if use_gelu else jnp.maximum(work, 0), summed.dtype)


@lowers("_trilinear")
def _trilinear(
    a: Any, b: Any, c: Any, expand1: list[int], expand2: list[int], expand3: list[int], sumdim: list[int], unroll_dim: int = 1
) -> Any:
    """Sum of a product of three, each with dimensions added."""
    for dims, place in ((expand1, 0), (expand2, 1), (expand3, 2)):
        for dim in sorted(dims):
            if place == 0:
                a = jnp.expand_dims(a, dim)
            elif place == 1:
                b = jnp.expand_dims(b, dim)
            else:
                c = jnp.expand_dims(c, dim)
    return jnp.sum(a * b * c, tuple(sumdim))


@lowers("_int_mm")
def _int_mm(a: Any, b: Any) -> Any:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)


@lowers("_scaled_mm", call=True)
def _scaled_mm(
    call: CallInfo,
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """Scales per tensor, or per row of ``a`` and column of ``b``."""
    result = lax.dot_general(a.astype(jnp.float32), b.astype(jnp.float32), (((1,), (0,)), ((), ())))
    for scale in (scale_a, scale_b):
        result = result * (scale.reshape(()) if scale.size == 1 else scale)
    if bias is not None:
        result = result + bias.astype(jnp.float32)
    out = result_dtype(call)
    if scale_result is not None and jnp.finfo(out).bits == 8:
        result = result * scale_result.reshape(())
    return result.astype(out)
