"""Views, and what moves elements without computing: each row gives the value that the view shows; the aliasing is the tracer's."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.core import max_dim

from torch_neuronx.lowering.promotion import convert, dim_of, dims_of, expand, result_dtype
from torch_neuronx.lowering.table import CallInfo, lowers


@lowers("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "_reshape_copy", "unflatten.int", "flatten.using_ints", call=True)
def _reshape(call: CallInfo, x: Any, *_: Any, **__: Any) -> Any:
    return x.reshape(tuple(call.out.shape))


@lowers("squeeze", "squeeze.dim", "squeeze.dims", "squeeze_copy", "squeeze_copy.dim", "unsqueeze", "unsqueeze_copy", call=True)
def _resqueezed(call: CallInfo, x: Any, *_: Any) -> Any:
    return x.reshape(tuple(call.out.shape))


@lowers("expand", "expand_copy", call=True)
def _expand(call: CallInfo, x: Any, _size: Any, implicit: bool = False) -> Any:
    return expand(x, tuple(call.out.shape))


@lowers("permute", "permute_copy")
def _permute(x: Any, dims: list[int]) -> Any:
    return lax.transpose(x, dims_of(dims, x.ndim)) if x.ndim else x


@lowers("transpose.int", "transpose_copy.int")
def _transpose(x: Any, a: int, b: int) -> Any:
    return jnp.swapaxes(x, a, b) if x.ndim else x


@lowers("t", "t_copy")
def _t(x: Any) -> Any:
    return lax.transpose(x, (1, 0)) if x.ndim == 2 else x


@lowers("alias", "detach", "alias_copy", "detach_copy", "lift", "lift_fresh")
def _identity(x: Any) -> Any:
    return x


@lowers("_conj")
def _conj(x: Any) -> Any:
    return jnp.conj(x)


@lowers("_neg_view")
def _neg_view(x: Any) -> Any:
    return -x


@lowers("slice.Tensor", "slice_copy.Tensor", call=True)
def _slice(call: CallInfo, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """PyTorch's metadata says how many elements there are, which needs no comparison of symbolic sizes."""
    dim = dim_of(dim, x.ndim)
    count = call.out.shape[dim]
    if isinstance(count, int) and count == 0:
        return lax.slice_in_dim(x, 0, 0, 1, dim)
    start = 0 if start is None else start
    if isinstance(start, int) and start < 0:
        start = max_dim(start + x.shape[dim], 0)
    return lax.slice_in_dim(x, start, start + (count - 1) * step + 1, step, dim)


@lowers("select.int", "select_copy.int")
def _select(x: Any, dim: int, index: int) -> Any:
    dim = dim_of(dim, x.ndim)
    return lax.index_in_dim(x, index + x.shape[dim] if index < 0 else index, dim, keepdims=False)


@lowers("diagonal", "diagonal_copy")
def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return jnp.diagonal(x, offset, dim1, dim2)


@lowers("unfold", "unfold_copy", call=True)
def _unfold(call: CallInfo, x: Any, dim: int, size: int, step: int) -> Any:
    """Windows of ``size`` every ``step``; the window becomes the last dimension."""
    if x.ndim == 0:
        return x.reshape(tuple(call.out.shape))
    dim = dim_of(dim, x.ndim)
    count = call.out.shape[dim]
    places = jnp.arange(count, dtype=jnp.int32)[:, None] * step + jnp.arange(size, dtype=jnp.int32)[None, :]
    return jnp.moveaxis(jnp.take(x, places, axis=dim, mode="clip"), dim + 1, -1)


@lowers("split.Tensor", "split_copy.Tensor")
def _split(x: Any, size: int, dim: int = 0) -> list[Any]:
    dim = dim_of(dim, x.ndim)
    length = x.shape[dim]
    if length == 0:
        return [x]
    return [lax.slice_in_dim(x, start, min(start + size, length), 1, dim) for start in range(0, length, size)]


@lowers("split_with_sizes", "split_with_sizes_copy")
def _split_with_sizes(x: Any, sizes: list[int], dim: int = 0) -> list[Any]:
    dim = dim_of(dim, x.ndim)
    parts, start = [], 0
    for size in sizes:
        parts.append(lax.slice_in_dim(x, start, start + size, 1, dim))
        start += size
    return parts


@lowers("unbind.int", "unbind_copy.int")
def _unbind(x: Any, dim: int = 0) -> list[Any]:
    dim = dim_of(dim, x.ndim)
    return [lax.index_in_dim(x, index, dim, keepdims=False) for index in range(x.shape[dim])]


@lowers("view_as_real", "view_as_real_copy")
def _view_as_real(x: Any) -> Any:
    return jnp.stack([x.real, x.imag], -1)


@lowers("view_as_complex", "view_as_complex_copy")
def _view_as_complex(x: Any) -> Any:
    return lax.complex(x[..., 0], x[..., 1])


@lowers("view.dtype", "view_copy.dtype", call=True)
def _view_dtype(call: CallInfo, x: Any, _dtype: Any) -> Any:
    from torch_neuronx.lowering.tracer import reinterpret

    return reinterpret(x.reshape(-1), result_dtype(call)).reshape(tuple(call.out.shape))


@lowers("cat", call=True)
def _cat(call: CallInfo, tensors: list[Any], dim: int = 0) -> Any:
    out = result_dtype(call)
    parts = [convert(x, out) for x in tensors if not (x.ndim == 1 and x.shape[0] == 0)]  # an old exception of torch.cat
    return lax.concatenate(parts, dim_of(dim, parts[0].ndim)) if parts else jnp.zeros(tuple(call.out.shape), out)


@lowers("stack", call=True)
def _stack(call: CallInfo, tensors: list[Any], dim: int = 0) -> Any:
    out = result_dtype(call)
    return jnp.stack([convert(x, out) for x in tensors], dim)


@lowers("constant_pad_nd", call=True)
def _constant_pad(call: CallInfo, x: Any, pad: list[int], value: Any = 0) -> Any:
    pairs = [(0, 0, 0)] * x.ndim
    for index in range(len(pad) // 2):
        pairs[x.ndim - 1 - index] = (pad[2 * index], pad[2 * index + 1], 0)
    return lax.pad(x, convert(value, x.dtype), pairs)


@lowers("flip")
def _flip(x: Any, dims: list[int]) -> Any:
    return lax.rev(x, dims_of(dims, x.ndim)) if dims and x.ndim else x


@lowers("roll")
def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    if x.size == 0:
        return x
    return jnp.roll(x, tuple(shifts), tuple(dims)) if dims else jnp.roll(x.reshape(-1), next(iter(shifts))).reshape(x.shape)


@lowers("repeat", call=True)
def _repeat(call: CallInfo, x: Any, repeats: list[int]) -> Any:
    return jnp.tile(x, tuple(repeats)) if repeats else x


@lowers("tril")
def _tril(x: Any, diagonal: int = 0) -> Any:
    return jnp.tril(x, diagonal)


@lowers("triu")
def _triu(x: Any, diagonal: int = 0) -> Any:
    return jnp.triu(x, diagonal)


@lowers("repeat_interleave.self_int")
def _repeat_interleave(x: Any, repeats: int, dim: int | None = None, output_size: int | None = None) -> Any:
    if dim is None:
        x, dim = x.reshape(-1), 0
    dim = dim_of(dim, x.ndim)
    shape = (*x.shape[: dim + 1], repeats, *x.shape[dim + 1 :])
    wide = lax.broadcast_in_dim(x, shape, [*range(dim + 1), *range(dim + 2, len(shape))])
    return wide.reshape((*x.shape[:dim], x.shape[dim] * repeats, *x.shape[dim + 1 :]))


@lowers("pixel_shuffle", call=True)
def _pixel_shuffle(call: CallInfo, x: Any, factor: int) -> Any:
    *batch, channels, height, width = x.shape
    split = x.reshape((math.prod(batch), channels // factor**2, factor, factor, height, width))
    return lax.transpose(split, (0, 1, 4, 2, 5, 3)).reshape(tuple(call.out.shape))


@lowers("pixel_unshuffle", call=True)
def _pixel_unshuffle(call: CallInfo, x: Any, factor: int) -> Any:
    *batch, channels, height, width = x.shape
    split = x.reshape((math.prod(batch), channels, height // factor, factor, width // factor, factor))
    return lax.transpose(split, (0, 1, 3, 5, 2, 4)).reshape(tuple(call.out.shape))
