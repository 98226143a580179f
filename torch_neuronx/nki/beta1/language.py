"""``neuronxcc.nki.language``: the beta-1 functions. They return tiles, take ``mask=`` and ``dtype=``, and broadcast."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from torch_neuronx.nki import dtypes, isa, numerics, ops
from torch_neuronx.nki.beta1.index import arange, mgrid
from torch_neuronx.nki.beta1.tile import Tile, assign, broadcast, new_tile
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.language import (  # noqa: F401  (the same in both languages)
    MemoryRegion,
    device_print,
    ds,
    hbm,
    no_reorder,
    num_programs,
    private_hbm,
    program_id,
    program_ndim,
    psum,
    sbuf,
    shared_hbm,
    tile_size,
)
from torch_neuronx.nki.language._ops import promote
from torch_neuronx.nki.tensor import NkiTensor
from torch_neuronx.nki.trace import current, user_stack
from torch_neuronx.nki.trace import where as at

bool_ = "bool"
int8, int16, int32, uint8, uint16, uint32 = "int8", "int16", "int32", "uint8", "uint16", "uint32"
float16, bfloat16, float32, tfloat32 = "float16", "bfloat16", "float32", "tfloat32"
float8_e4m3, float8_e4m3fn, float8_e5m2 = "float8_e4m3", "float8_e4m3fn", "float8_e5m2"

__all__ = ["arange", "mgrid"]


class _Float32(str):
    """``nl.fp32``: the dtype with its limits."""

    min = float(np.finfo(np.float32).min)
    max = float(np.finfo(np.float32).max)


fp32 = _Float32("float32")


def finfo(dtype: Any) -> Any:
    """The limits of a floating dtype, as NumPy gives them."""
    from torch_neuronx.nki.numpy_dtypes import finfo as limits

    return limits(dtypes.dtype(dtype).name)


# Shapes and loops.


class ParDim(int):
    """``nl.par_dim(128)``: the dimension that walks the partitions."""


def par_dim(value: int) -> ParDim:
    return ParDim(value)


class LoopIndex(int):
    """A loop variable that remembers its loop, for ``nl.loop_reduce``."""

    site: object = None  # where the loop is in the kernel: the same in every turn of the loops around it
    run: int = -1  # which execution of it this is


_active_loops: dict[int, LoopIndex] = {}  # by run, outer ones first
_loop_runs = itertools.count()


def affine_range(start: int, stop: int | None = None, step: int = 1, **_: Any) -> Iterator[LoopIndex]:
    """``range``: the loop is unrolled while the kernel is traced. Hints to the compiler are ignored."""
    site, run = user_stack(), next(_loop_runs)
    try:
        for value in range(start) if stop is None else range(start, stop, step):
            index = LoopIndex(value)
            index.site, index.run = site, run
            _active_loops[run] = index
            yield index
    finally:
        _active_loops.pop(run, None)


sequential_range = static_range = affine_range


def loop_reduce(value: Tile, op: Any, loop_indices: Sequence[LoopIndex], *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """The reduction of ``value`` over all turns of the loops so far; after the last turn it is that over all of them.

    What ``mask`` leaves out takes no part. There is one total for each combination of the other loops' variables: a loop inside those
    that are reduced runs once in each of their turns, and each of its own turns goes on with its total.
    """
    value = value.partition_first()
    runs = {index.run for index in loop_indices if isinstance(index, LoopIndex)}
    others = tuple((index.site, int(index)) for run, index in _active_loops.items() if run not in runs)
    key = (user_stack(), builtins.min(runs, default=-1), others)
    totals = current().__dict__.setdefault("loop_totals", {})
    if key not in totals:
        totals[key] = new_tile(value.shape, float32)
        isa.memset(totals[key], ops.alu(ops.token(op)).identity)
    parts = _shrink(mask, value.shape, totals[key], value)
    if parts:
        total, part = parts
        binary(ops.token(op), total, part, out=total)
    return copy(totals[key], dtype=dtype or value.dtype)


def spmd_dim(*parts: Any) -> int:
    """A grid dimension that names physical cores; they run one after the other here."""
    total = 1
    for part in parts:
        total *= int(part)
    return total


class _Cores(int):
    def __mul__(self, other: Any) -> int:
        return int(self) * int(other)

    __rmul__ = __mul__


def nc(count: int) -> _Cores:
    """``count`` physical cores of a grid dimension."""
    return _Cores(count)


# Memory.


def _region(buffer: Any) -> MemoryRegion:
    if isinstance(buffer, MemoryRegion):
        return buffer
    region = getattr(buffer, "region", None)
    if isinstance(region, MemoryRegion):
        return region
    raise TypeError(f"{at()}buffer must be a memory of nl or an allocation of nki.compiler, got {buffer!r}")


def ndarray(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile:
    """A new tensor, not initialised; ``nl.par_dim`` marks the partition dimension of one with block dimensions."""
    region = _region(MemoryRegion.sbuf if buffer is None else buffer)
    shape = list(shape)
    marked = [d for d, n in enumerate(shape) if isinstance(n, ParDim)]
    partition = marked[0] if marked else 0
    sizes = [int(n) for n in shape]
    if not region.on_chip:
        return new_tile(sizes, dtype, region, name)
    if len(sizes) < 2:
        sizes.append(1)
    packed = [sizes[partition], *(n for d, n in enumerate(sizes) if d != partition)]
    storage = current().allocate(packed, dtype, region, name)
    return Tile.blocks(storage, sizes, partition)


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "", mask: Any = None, **_: Any) -> Tile:
    """A new tensor filled with a number."""
    out = ndarray(shape, dtype, buffer=buffer, name=name)
    value = float(fill_value) if dtypes.dtype(dtype).is_float else int(fill_value)
    assign(out, value)
    return out


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", mask: Any = None, **_: Any) -> Tile:
    return full(shape, 0, dtype, buffer=buffer, name=name)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", mask: Any = None, **_: Any) -> Tile:
    return full(shape, 1, dtype, buffer=buffer, name=name)


def zeros_like(a: Tile, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Tile:
    return full(a.partition_first().shape, 0, dtype or a.dtype, buffer=buffer, name=name)


def empty_like(a: Tile, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Tile:
    return ndarray(a.partition_first().shape, dtype or a.dtype, buffer=buffer, name=name)


def shared_constant(constant: Any, dtype: Any = None, **_: Any) -> Tile:
    from torch_neuronx.nki.language._memory import shared_constant as make

    tensor = make(constant, dtype)
    return Tile(tensor.storage, tensor.shape, tensor.strides)


def shared_identity_matrix(n: int, dtype: Any = uint8, **_: Any) -> Tile:
    from torch_neuronx.nki.language._memory import shared_identity_matrix as make

    tensor = make(n, dtype)
    return Tile(tensor.storage, tensor.shape, tensor.strides)


def _shrink(mask: Any, shape: Sequence[int], *tiles: Any) -> list[Any]:
    """The tiles inside a mask's rectangle of ``shape``; all of them without a mask. An empty list when nothing is left."""
    if mask is None or isinstance(mask, (bool, np.bool_)):
        return list(tiles) if mask is None or mask else []
    bounds = mask.bounds(shape)
    if any(a >= b for a, b in bounds):
        return []
    return [tile.shrunk(bounds) if isinstance(tile, Tile) else tile for tile in tiles]


def load(src: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """A new tile in SBUF with what ``src``, a view of HBM, holds."""
    shape = src.shape if src.ndim > 1 else (src.size, 1)
    view = src if src.ndim > 1 else Tile(src.storage, shape, (src.strides[0], 1), src.offset, src._dtype, src._dynamic)
    out = new_tile(shape, dtype or src.dtype)
    for target, source in [_shrink(mask, shape, out, view)] if _shrink(mask, shape, out) else []:
        if source.buffer.on_chip:
            isa.tensor_copy(target, source)
        else:
            isa.dma_copy(target, source, oob_mode=isa.oob_mode.error)
    return out


def in_sbuf(tile: Tile) -> Tile:
    """For an instruction that cannot read PSUM: beta 1's compiler moves the result of a transpose or product to where it is read."""
    tile = tile.partition_first()
    return copy(tile) if tile.buffer is MemoryRegion.psum else tile


def store(dst: Tile, value: Any, *, mask: Any = None, **_: Any) -> None:
    """Writes a tile, or a number, to HBM."""
    if not isinstance(value, NkiTensor):
        value = full((1, 1), value, dst.dtype)
    assert isinstance(value, Tile)
    value = in_sbuf(value)
    target = dst
    if value.size != target.size:
        value = broadcast(value, target.shape)
    elif value.shape != target.shape and mask is not None:
        value = value.reshape(target.shape) if not value.buffer.on_chip or value.shape[0] == target.shape[0] else value
    pair = _shrink(mask, target.shape, target, value)
    if pair:
        isa.dma_copy(*pair)


def load_transpose2d(src: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """A new tile in SBUF with the transpose of a 2-D view of HBM."""
    out = new_tile((src.shape[1], src.shape[0]), src.dtype)
    pair = _shrink(mask, src.shape, src)
    if pair:
        part = pair[0]
        isa.dma_transpose(out[: part.shape[1], : part.shape[0]], part)
    return out if dtype is None or dtypes.dtype(dtype).name == src.dtype else copy(out, dtype=dtype)


def atomic_rmw(dst: Tile, value: Tile, op: Any, *, mask: Any = None, **_: Any) -> None:
    """``dst = dst op value`` in HBM; only add."""
    if ops.token(op) != "add":
        raise NkiValidationError(f"{at()}atomic_rmw: only add, got {ops.token(op)}")
    pair = _shrink(mask, dst.shape, dst, value.partition_first())
    if pair:
        isa.dma_compute(pair[0], [pair[0], pair[1]], add, unique_indices=dst.is_indirect())


# Element-wise functions.


def result(shape: Sequence[int], dtype: Any) -> Tile:
    return new_tile(shape, dtype)


def _tiles_of(*values: Any) -> list[Tile]:
    return [v.partition_first() for v in values if isinstance(v, Tile)]


def binary(op: str, x: Any, y: Any, dtype: Any = None, mask: Any = None, out: Tile | None = None) -> Tile:
    """``x op y`` with broadcasting; at least one is a tile."""
    tiles = _tiles_of(x, y)
    if not tiles:
        raise TypeError(f"{at()}{op} needs at least one tile")
    tiles = [copy(t) if not t.buffer.on_chip else t for t in tiles]
    shape = tuple(np.broadcast_shapes(*(t.shape for t in tiles)))
    if len(tiles) == 2:
        kind = dtype or (tiles[0].dtype if tiles[0].dtype == tiles[1].dtype else promote(tiles[0].dtype, tiles[1].dtype))
    else:
        kind = dtype or _with_number(tiles[0].dtype, y if isinstance(x, Tile) else x)
    if op == "divide" and dtype is None and dtypes.dtype(kind).is_integer:
        kind = float32  # as NumPy divides integers
    target = (out if out is not None else result(shape, kind)).partition_first()
    if len(tiles) == 1:
        number, reverse = (y, False) if isinstance(x, Tile) else (x, True)
        pair = _shrink(mask, shape, target, broadcast(tiles[0], shape))
        if pair:
            isa.tensor_scalar(pair[0], pair[1], _tokens[op], _number(number), reverse0=reverse)
        return target
    a, b = tiles
    vector = b.size == b.shape[0] == shape[0] and a.shape == shape and b.dtype == float32 and mask is None
    if vector and a.size > a.shape[0] and op != "power":
        isa.tensor_scalar(target, a, _tokens[op], b)
        return target
    parts = _shrink(mask, shape, target, broadcast(a, shape), broadcast(b, shape))
    if parts:
        if builtins.all(p.buffer is MemoryRegion.psum for p in parts[1:]):
            parts[2] = copy(parts[2])
        isa.tensor_tensor(*parts, _tokens[op])
    return target


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _with_number(dtype: str, number: Any) -> str:
    return "float32" if isinstance(_number(number), float) and dtypes.dtype(dtype).is_integer else dtype


def _token(name: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
        return binary(name, x, y, dtype, mask)

    function.__name__ = name
    function.nki_op = name  # type: ignore[attr-defined]
    function.__doc__ = f"``x {name} y`` with broadcasting."
    return function


_tokens = {name: _token(name) for name, row in ops.ALU.items() if not row.unary and name != "bypass"}
globals().update(_tokens)
add = _tokens["add"]


def unary(op: str, x: Tile, dtype: Any = None, mask: Any = None) -> Tile:
    """An activation function of a tile."""
    tile = x.partition_first()
    out = result(tile.shape, dtype or tile.dtype)
    pair = _shrink(mask, tile.shape, out, tile)
    if pair:
        isa.activation(pair[0], _functions[op], pair[1])
    return out


def _function(name: str) -> Callable[..., Any]:
    def function(x: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
        return unary(name, x, dtype, mask)

    function.__name__ = name
    function.nki_op = name  # type: ignore[attr-defined]
    function.__doc__ = f"{name} of each element."
    return function


_functions = {name: _function(name) for name in numerics.ACTIVATIONS}
globals().update(_functions)
gelu_apprx_tanh = _functions["gelu_apprx_tanh"]


def copy(src: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """A copy in SBUF."""
    tile = src.partition_first()
    out = result(tile.shape, dtype or tile.dtype)
    pair = _shrink(mask, tile.shape, out, tile)
    if pair:
        (isa.tensor_copy if tile.buffer.on_chip else isa.dma_copy)(*pair)
    return out


copy.nki_op = "copy"  # type: ignore[attr-defined]


def static_cast(value: Any, dtype: Any) -> Any:
    """``value`` as another dtype."""
    return copy(value, dtype=dtype) if isinstance(value, Tile) else np.asarray(value).astype(dtypes.dtype(dtype).name)


def negative(x: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    return binary("multiply", x, -1.0, dtype or x.dtype, mask)


def invert(x: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    return binary("bitwise_xor", x, -1, dtype, mask)


def logical_not(x: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    return binary("equal", x, 0.0, dtype or x.dtype, mask)


def _same_as(name: str) -> Callable[..., Any]:
    """A function of the present language, whose tiles have operators here."""

    def function(*args: Any, mask: Any = None, **kwargs: Any) -> Any:
        from torch_neuronx.nki import language

        out = getattr(language, name)(*(a.partition_first() if isinstance(a, Tile) else a for a in args), **kwargs)
        return Tile(out.storage, out.shape, out.strides, out.offset, out._dtype)

    function.__name__ = name
    return function


def rand(shape: Any, dtype: Any = "float32", **_: Any) -> Tile:
    """Uniform in [0, 1)."""
    made = _same_as("rand")(tuple(int(n) for n in shape), dtype)
    assert isinstance(made, Tile)
    return made


floor, ceil, trunc, cos, tan, softmax, gather_flattened = (
    _same_as(n) for n in ("floor", "ceil", "trunc", "cos", "tan", "softmax", "gather_flattened")
)


def rms_norm(x: Tile, w: Tile, axis: Any, n: int, epsilon: float = 1e-6, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    total = reduce("add", binary("multiply", x, x, float32), axis, float32, keepdims=True)
    scale = unary("rsqrt", binary("add", binary("multiply", total, 1.0 / n), epsilon))
    return binary("multiply", binary("multiply", x, scale, float32), w, dtype or x.dtype)


def where(condition: Tile, x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """x where the condition holds, else y, with broadcasting."""
    tiles = _tiles_of(condition, x, y)
    shape = tuple(np.broadcast_shapes(*(t.shape for t in tiles)))
    values = [v for v in (x, y) if isinstance(v, Tile)]
    kind = dtype or (promote(values[0].dtype, values[-1].dtype) if values else float32)
    out, chosen = result(shape, kind), result(shape, kind)
    for target, value in ((out, y), (chosen, x)):
        assign(target, broadcast(value, shape) if isinstance(value, Tile) else value)
    flags = binary("not_equal", broadcast(tiles[0], shape), 0.0, uint8)
    isa.tensor_copy_predicated(out, chosen, flags)
    return out


def broadcast_to(src: Tile, *, shape: Any, **_: Any) -> Tile:
    return broadcast(src, tuple(int(n) for n in shape))


def expand_dims(data: Tile, axis: int) -> Tile:
    keys: list[Any] = [slice(None)] * data.ndim
    keys.insert(axis + (data.ndim + 1) * (axis < 0), None)
    return data[tuple(keys)]


def dropout(x: Tile, rate: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    out = result(x.partition_first().shape, x.dtype)
    isa.dropout(out, x.partition_first(), rate.partition_first() if isinstance(rate, Tile) else rate)
    return out if dtype is None else copy(out, dtype=dtype)


def random_seed(seed: Any, **_: Any) -> None:
    """Seeds the Vector engine's generator with a [1, 1] tile or a number."""
    isa.set_rng_seed(seed if isinstance(seed, Tile) else full((1, 1), int(seed), int32))


# Reductions.


def reduce(op: str, x: Tile, axis: Any, dtype: Any = None, mask: Any = None, keepdims: bool = False, negate: bool = False) -> Tile:
    """A reduction over free dimensions; other ones than the last are brought to the end by a view."""
    tile = x.partition_first()
    axes = sorted({int(a) % tile.ndim for a in (axis if isinstance(axis, (tuple, list)) else [axis])})
    kept = [d for d in range(tile.ndim) if d not in axes]
    shape = [1 if d in axes else n for d, n in enumerate(tile.shape)] if keepdims else [tile.shape[d] for d in kept]
    out = result(shape if len(shape) > 1 else [*shape, 1], dtype or tile.dtype)
    parts = _shrink(mask, tile.shape, tile)
    if not parts:
        return out
    source = parts[0]
    turned = source.permute([*kept, *axes])
    dims = range(tile.ndim) if keepdims else kept
    target = out if source is tile else out[tuple(slice(0, 1 if d in axes else source.shape[d]) for d in dims)]
    isa.tensor_reduce(target, _tokens[op], turned, axis=tuple(range(len(kept), tile.ndim)), negate=negate)
    return out


def _reduction(name: str, op: str) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None, *args: Any, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Tile:
        return reduce(op, x, axis, dtype, mask, keepdims)

    function.__name__ = name
    function.nki_op = op  # type: ignore[attr-defined]
    return function


sum, max, min, prod = (_reduction(n, o) for n, o in (("sum", "add"), ("max", "maximum"), ("min", "minimum"), ("prod", "multiply")))
all = _reduction("all", "logical_and")


def mean(x: Tile, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Tile:
    tile = x.partition_first()
    count = 1
    for a in axis if isinstance(axis, (tuple, list)) else [axis]:
        count *= tile.shape[a]
    return binary("multiply", reduce("add", x, axis, float32, mask, keepdims), 1.0 / count, dtype or x.dtype)


def var(x: Tile, axis: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    average = mean(x, axis, dtype=float32, keepdims=True)
    centred = binary("subtract", x, average, float32)
    return mean(binary("multiply", centred, centred), axis, dtype=dtype or x.dtype, keepdims=True)


def all_reduce(x: Tile, op: Any, program_axes: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """A reduction over programs of the grid, which run one after the other here: only a grid of one is possible."""
    axes = program_axes if isinstance(program_axes, (tuple, list)) else [program_axes]
    if any(num_programs(a) > 1 for a in axes):
        raise NkiValidationError(f"{at()}all_reduce over a grid axis with several programs is not supported by the emulation")
    return copy(x, dtype=dtype)


# Matrix products.


def matmul(x: Tile, y: Tile, *, transpose_x: bool = False, mask: Any = None, **_: Any) -> Tile:
    """``x @ y``, or ``x.T @ y``, in PSUM."""
    x, y = in_sbuf(x if transpose_x else transpose(x)), in_sbuf(y)
    out = new_tile((x.size // x.shape[0], y.size // y.shape[0]), float32, MemoryRegion.psum)
    if leaves_out(mask, out):
        return out
    isa.nc_matmul(out, x, y)
    return out


def leaves_out(mask: Any, product: Tile) -> bool:
    """True when a product is not to be made at all."""
    product.left_out = isinstance(mask, (bool, np.bool_)) and not mask
    return product.left_out


def transpose(x: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """x.T between partitions and free dimension, in PSUM."""
    tile = in_sbuf(x)
    out = new_tile((tile.size // tile.shape[0], tile.shape[0]), dtype or tile.dtype, MemoryRegion.psum)
    isa.nc_transpose(out, tile, engine=isa.engine.tensor)
    return out
