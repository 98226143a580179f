"""``neuronxcc.nki.isa``: the beta-1 instructions. They make their destination, and take ``mask=`` and ``dtype=``."""

from __future__ import annotations

from typing import Any

from torch_neuronx.nki import isa, ops
from torch_neuronx.nki.beta1 import language as nl
from torch_neuronx.nki.beta1.index import Index
from torch_neuronx.nki.beta1.language import _shrink
from torch_neuronx.nki.beta1.tile import Tile, broadcast, new_tile
from torch_neuronx.nki.isa import (  # noqa: F401
    constants,
    dge_mode,
    engine,
    get_nc_version,
    gpsimd_engine,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    sync_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from torch_neuronx.nki.memory import MemoryRegion

_FILL = -3.4028235e38


def _op(value: Any) -> Any:
    return None if value is None else nl._tokens.get(ops.token(value), value)


def _first(value: Any) -> Any:
    return value.partition_first() if isinstance(value, Tile) else value


def _run(row: Any, mask: Any, shape: Any, tiles: list[Any], **kwargs: Any) -> None:
    """Records the instruction on what the mask leaves of the tiles (destination first)."""
    parts = _shrink(mask, shape, *tiles)
    if parts:
        row(*parts, **kwargs)


def tensor_copy(src: Tile, *, mask: Any = None, dtype: Any = None, engine: Any = engine.unknown, **_: Any) -> Tile:
    tile = src.partition_first()
    out = new_tile(tile.shape, dtype or tile.dtype)
    _run(isa.tensor_copy, mask, tile.shape, [out, tile], engine=engine)
    return out


def tensor_copy_predicated(*, src: Any, dst: Tile, predicate: Tile, mask: Any = None, reverse_pred: bool = False, **_: Any) -> None:
    flags = predicate.partition_first()
    if flags.dtype not in ("uint8", "uint16", "uint32"):
        flags = nl.binary("not_equal", flags, 0.0, "uint8")
    target = dst.partition_first()
    if isinstance(src, Tile) and src.dtype != target.dtype:
        src = nl.copy(src, dtype=target.dtype)
    _run(isa.tensor_copy_predicated, mask, target.shape, [target, _first(src), flags], reverse_pred=reverse_pred)


tensor_copy_predicated_ = tensor_copy_predicated


def memset(shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: Any = engine.unknown, **_: Any) -> Tile:
    out = new_tile(tuple(int(n) for n in shape), dtype)
    kind = out._dtype
    _run(isa.memset, mask, out.shape, [out], value=float(value) if kind.is_float else int(value), engine=engine)
    return out


def dma_copy(*, dst: Tile, src: Tile, mask: Any = None, dst_rmw_op: Any = None, oob_mode: Any = oob_mode.error, **_: Any) -> None:
    target, source = dst.partition_first(), nl.in_sbuf(src)
    parts = _shrink(mask, target.shape, target, source)
    if not parts:
        return
    if dst_rmw_op is not None:
        isa.dma_compute(parts[0], [parts[0], parts[1]], _op(dst_rmw_op))
    else:
        isa.dma_copy(*parts, oob_mode=oob_mode)


def dma_transpose(src: Tile, *, axes: Any = None, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    order = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[src.ndim]
    out = new_tile([src.shape[d] for d in order], src.dtype)
    isa.dma_transpose(out, nl.in_sbuf(src))
    return out if dtype is None else nl.copy(out, dtype=dtype)


def nc_matmul(stationary: Tile, moving: Tile, *, mask: Any = None, perf_mode: Any = "none", **flags: Any) -> Tile:
    left, right = (t.partition_first() for t in (stationary, moving))
    perf_mode = {"double_row_gen3": "double_row"}.get(perf_mode, perf_mode)
    rows = 2 if getattr(perf_mode, "value", perf_mode) == "double_row" else 1
    n = right.size // right.shape[0] // rows
    shape = (left.size // left.shape[0] // rows, *(right.shape[1:] if rows == 1 and right.ndim > 2 else (n,)))
    out = new_tile(shape, "float32", MemoryRegion.psum)
    known = {
        k: v for k, v in flags.items() if k in ("is_stationary_onezero", "is_moving_onezero", "is_transpose", "tile_position", "tile_size")
    }
    if known.get("is_transpose"):
        out = new_tile(shape, right.dtype, MemoryRegion.psum)
    if not nl.leaves_out(mask, out):
        isa.nc_matmul(out, nl.in_sbuf(left), nl.in_sbuf(right), perf_mode=perf_mode, **known)
    return out


def nc_transpose(data: Tile, *, mask: Any = None, dtype: Any = None, engine: Any = engine.unknown, **_: Any) -> Tile:
    tile = data.partition_first()
    p, f = tile.shape[0], tile.size // tile.shape[0]
    on_vector = engine is isa.engine.vector or (engine is isa.engine.unknown and p <= 32 and f <= 32)
    out = new_tile((f, p), dtype or tile.dtype, MemoryRegion.sbuf if on_vector else MemoryRegion.psum)
    if nl.leaves_out(mask, out):
        return out
    if not on_vector:
        tile = nl.in_sbuf(tile)
    isa.nc_transpose(out, tile, engine=isa.engine.vector if on_vector else isa.engine.tensor)
    return out


def _vector(value: Any) -> Any:
    """A bias or scale: a number, or a [P, 1] float32 tile."""
    return value.partition_first() if isinstance(value, Tile) else value


def activation(
    op: Any,
    data: Tile,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = reduce_cmd.idle,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tile:
    tile = data.partition_first()
    out = new_tile(tile.shape, dtype or tile.dtype)
    function = nl._functions.get(ops.token(op), op)
    bias, scale, res = (_vector(v) for v in (bias, scale, reduce_res))
    parts = _shrink(mask, tile.shape, out, tile, bias, scale, res)
    if parts:
        target, source, b, s, r = parts
        isa.activation(target, function, source, bias=b, scale=s, reduce_op=_op(reduce_op), reduce_res=r, reduce_cmd=reduce_cmd)
    return out


def activation_reduce(
    op: Any,
    data: Tile,
    *,
    reduce_op: Any = None,
    reduce_res: Any = None,
    bias: Any = None,
    scale: Any = 1.0,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tile:
    tile = data.partition_first()
    out = new_tile(tile.shape, dtype or tile.dtype)
    function = nl._functions.get(ops.token(op), op)
    parts = _shrink(mask, tile.shape, out, tile, _vector(bias), _vector(scale), _vector(reduce_res))
    if parts:
        target, source, b, s, r = parts
        isa.activation_reduce(target, function, source, nl.add, r, bias=b, scale=s)
    return out


def tensor_tensor(
    data1: Tile, data2: Tile, op: Any, *, dtype: Any = None, mask: Any = None, engine: Any = engine.unknown, **_: Any
) -> Tile:
    return nl.binary(ops.token(op), data1, data2, dtype, mask)


def _operand(value: Any, tile: Tile, bits: bool) -> Any:
    """A [P, 1] operand; arithmetic ones are float32."""
    if not isinstance(value, Tile):
        return value.item() if hasattr(value, "item") else value
    vector = value.partition_first()
    if vector.size != vector.shape[0]:
        vector = vector.reshape((vector.shape[0], vector.size // vector.shape[0]))
    if vector.shape[0] == 1 and tile.shape[0] > 1:
        vector = broadcast(vector.reshape((1, 1)), (tile.shape[0], 1))
    return vector if bits or vector.dtype == "float32" else nl.copy(vector, dtype="float32")


def tensor_scalar(
    data: Tile,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engine.unknown,
    **_: Any,
) -> Tile:
    tile = data.partition_first()
    bits = ops.ALU[ops.token(op0)].kind == "bits"
    numbers = [v for v in (operand0, operand1) if isinstance(v, float)]
    kind = dtype or (nl._with_number(tile.dtype, numbers[0]) if numbers else tile.dtype)
    out = new_tile(tile.shape, kind)
    parts = _shrink(mask, tile.shape, out, tile, _operand(operand0, tile, bits), _operand(operand1, tile, bits))
    if parts:
        target, source, a, b = parts
        isa.tensor_scalar(target, source, _op(op0), a, reverse0, _op(op1), b if op1 is not None else None, reverse1)
    return out


def scalar_tensor_tensor(
    *,
    data: Tile,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Tile:
    tile = data.partition_first()
    if not isinstance(operand1, Tile):
        return tensor_scalar(data, op0, operand0, reverse0, op1, operand1, reverse1, dtype=dtype, mask=mask)
    other = broadcast(operand1, tile.shape)
    out = new_tile(tile.shape, dtype or nl.promote(tile.dtype, other.dtype))
    parts = _shrink(mask, tile.shape, out, tile, _operand(operand0, tile, False), other)
    if parts:
        target, source, a, b = parts
        isa.scalar_tensor_tensor(target, source, _op(op0), a, _op(op1), b, reverse0, reverse1)
    return out


def tensor_reduce(
    op: Any, data: Tile, axis: Any, *, mask: Any = None, dtype: Any = None, negate: bool = False, keepdims: bool = False, **_: Any
) -> Tile:
    return nl.reduce(ops.token(op), data, axis, dtype, mask, keepdims, negate)


def tensor_partition_reduce(op: Any, data: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    tile = data.partition_first()
    out = new_tile((1, *tile.shape[1:]), dtype or tile.dtype)
    parts = _shrink(mask, tile.shape, tile)
    if parts:
        isa.tensor_partition_reduce(out, _op(op), parts[0])
    return out


def tensor_tensor_scan(
    data0: Tile, data1: Tile, initial: Any, op0: Any, op1: Any, reverse0: bool = False, reverse1: bool = False, *, dtype: Any = None,
    mask: Any = None, **_: Any,
) -> Tile:  # fmt: skip
    a, b = data0.partition_first(), data1.partition_first()
    shape = a.shape if a.size >= b.size else b.shape
    out = new_tile(shape, dtype or nl.promote(a.dtype, b.dtype))
    parts = _shrink(mask, shape, out, broadcast(a, shape), broadcast(b, shape), _operand(initial, a, False))
    if parts:
        isa.tensor_tensor_scan(*parts, _op(op0), _op(op1), reverse0, reverse1)
    return out


def reciprocal(data: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    tile = data.partition_first()
    out = new_tile(tile.shape, dtype or tile.dtype)
    _run(isa.reciprocal, mask, tile.shape, [out, tile])
    return out


def bn_stats(data: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    tile = data.partition_first()
    out = new_tile((tile.shape[0], 6), dtype or "float32")
    parts = _shrink(mask, tile.shape, tile)
    if parts:
        isa.bn_stats(out[: parts[0].shape[0]], parts[0])
    return out


def bn_aggr(data: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    tile = data.partition_first()
    out = new_tile((tile.shape[0], 2), dtype or tile.dtype)
    parts = _shrink(mask, tile.shape, tile)
    if parts:
        isa.bn_aggr(out[: parts[0].shape[0]], parts[0])
    return out


def max8(*, src: Tile, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    tile = src.partition_first()
    out = new_tile((tile.shape[0], 8), dtype or tile.dtype)
    isa.max8(out, _shrink(mask, tile.shape, tile)[0])
    return out


def nc_find_index8(*, data: Tile, vals: Tile, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    tile = data.partition_first()
    out = new_tile((tile.shape[0], 8), dtype or "uint32")
    isa.nc_find_index8(out, _shrink(mask, tile.shape, tile)[0], vals.partition_first())
    return out


def nc_match_replace8(*, data: Tile, vals: Tile, imm: float, dst_idx: Any = None, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    tile = data.partition_first()
    out = new_tile(tile.shape, dtype or tile.dtype)
    isa.nc_match_replace8(out, tile, vals.partition_first(), imm, _first(dst_idx))
    return out


def nc_stream_shuffle(src: Tile, dst: Tile, shuffle_mask: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> None:
    isa.nc_stream_shuffle(dst.partition_first(), src.partition_first(), [255 if m is None else m for m in shuffle_mask])


def iota(expr: Any, dtype: Any, *, mask: Any = None, **_: Any) -> Tile:
    index = nl_affine(expr)
    shape = index.shape
    out = new_tile(shape, dtype)
    pattern = [[c, n] for c, n in zip(index.coefficients[1:], shape[1:], strict=True)] or [[0, 1]]
    isa.iota(out, pattern, offset=index.const, channel_multiplier=index.coefficients[0])
    return out


def nl_affine(expr: Any) -> Index:
    from torch_neuronx.nki.beta1.index import _affine

    return _affine(expr)


def affine_select(pred: Any, on_true_tile: Tile, on_false_value: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """Keeps the elements for which all affine conditions hold."""
    tile = nl.in_sbuf(on_true_tile)
    for condition in pred.conditions:
        out = new_tile(tile.shape, dtype or tile.dtype)
        rank = tile.ndim
        coefficients = condition.aligned(rank)
        pattern = [[-c, n] for c, n in zip(coefficients[1:], tile.shape[1:], strict=True)]
        isa.affine_select(out, pattern, -coefficients[0], tile, float(on_false_value), nl._tokens["greater_equal"], offset=-condition.const)
        tile = out
    return tile


def range_select(
    *,
    on_true_tile: Tile,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Tile,
    bound1: Tile,
    reduce_cmd: Any = reduce_cmd.reset_reduce,
    reduce_res: Any = None,
    reduce_op: Any = None,
    range_start: int = 0,
    on_false_value: float = _FILL,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tile:
    tile = on_true_tile.partition_first()
    out = new_tile(tile.shape, dtype or tile.dtype)
    isa.range_select(
        out, tile, _op(comp_op0), _op(comp_op1), bound0.partition_first(), bound1.partition_first(), reduce_res=_first(reduce_res),
        reduce_cmd=reduce_cmd, range_start=range_start, on_false_value=_FILL, reduce_op=nl._tokens["maximum"],
    )  # fmt: skip
    return out


def select_reduce(
    *, dst: Tile, predicate: Tile, on_true: Tile, on_false: Any, reduce_res: Any = None, reduce_cmd: Any = reduce_cmd.idle,
    reduce_op: Any = None, reverse_pred: bool = False, mask: Any = None, dtype: Any = None, **_: Any,
) -> None:  # fmt: skip
    isa.select_reduce(
        dst.partition_first(), predicate.partition_first(), on_true.partition_first(), _first(on_false), _first(reduce_res), reduce_cmd,
        nl._tokens["maximum"], reverse_pred,
    )  # fmt: skip


def tensor_scalar_cumulative(
    *, dst: Tile, src: Tile, op0: Any, op1: Any, imm0: Any, imm1: Any = None, reduce_cmd: Any = reduce_cmd.reset_reduce, **_: Any
) -> None:
    isa.tensor_scalar_cumulative(dst.partition_first(), src.partition_first(), _op(op0), _op(op1), _first(imm0), _first(imm1), reduce_cmd)


def tensor_scalar_reduce(*, data: Tile, op0: Any, operand0: Any, reduce_op: Any, reduce_res: Any, dtype: Any = None, **_: Any) -> Tile:
    tile = data.partition_first()
    out = new_tile(tile.shape, dtype or tile.dtype)
    isa.tensor_scalar_reduce(out, tile, _op(op0), _operand(operand0, tile, False), _op(reduce_op), _first(reduce_res))
    return out


def local_gather(
    src_buffer: Tile, index: Tile, num_elem_per_idx: int = 1, num_valid_indices: Any = None, *, mask: Any = None, **_: Any
) -> Tile:
    source, where = src_buffer.partition_first(), index.partition_first()
    valid = num_valid_indices or where.size // where.shape[0] * 16
    shape = (source.shape[0], valid * num_elem_per_idx) if num_elem_per_idx == 1 else (source.shape[0], valid, num_elem_per_idx)
    out = new_tile(shape, source.dtype)
    isa.local_gather(out, source, where, num_elem_per_idx, valid)
    return out


def dropout(data: Tile, prob: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    return nl.dropout(data, prob, dtype=dtype)


def sequence_bounds(*, segment_ids: Tile, dtype: Any = None, **_: Any) -> Tile:
    tile = segment_ids.partition_first()
    out = new_tile((1, 2, tile.size), dtype or tile.dtype)
    isa.sequence_bounds(out, tile)
    return out
