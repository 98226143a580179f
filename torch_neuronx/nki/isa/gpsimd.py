"""GpSimd engine: index patterns, gathers, work across partitions."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_neuronx.nki import numerics, ops
from torch_neuronx.nki.instruction import Instruction, Register
from torch_neuronx.nki.isa.elementwise import reduce_dims
from torch_neuronx.nki.limits import dtype_in, in_sbuf, max_free, no_packed, on_chip, op_in, same_dtype, same_elements, same_partitions
from torch_neuronx.nki.opcode import Call, opcode
from torch_neuronx.nki.simulator import Binder, Step
from torch_neuronx.nki.tensor import NkiTensor


def affine_values(pattern: Any, partitions: int, channel_multiplier: int) -> torch.Tensor:
    """``partition * channel_multiplier + sum(step * index)`` as int64 ``[P, prod(nums)]``."""
    free = torch.zeros(1, dtype=torch.int64)
    for step, count in pattern:
        free = (free[:, None] + torch.arange(count) * step).reshape(-1)
    return torch.arange(partitions)[:, None] * channel_multiplier + free[None, :]


def _affine_pattern(call: Call) -> None:
    pattern = [[int(step), int(count)] for step, count in call["pattern"]]
    call.attrs["pattern"] = pattern
    if not 1 <= len(pattern) <= 4:
        call.fail(f"pattern has 1 to 4 [step, num] pairs, got {len(pattern)}")
    elements = math.prod(count for _, count in pattern)
    if elements != call.access("dst").free_size:
        call.fail(f"pattern {pattern} gives {elements} elements per partition, dst has {call.access('dst').free_size}")
    if isinstance(call["offset"], Register):
        call.registers[0].append(call["offset"])


@opcode("gpsimd", limits=[in_sbuf("dst"), no_packed("dst"), _affine_pattern])
def iota(dst: NkiTensor, pattern: Any, offset: Any = 0, channel_multiplier: int = 0, name: str | None = None) -> None:
    """``offset + partition * channel_multiplier + sum(step * index)`` over up to four ``[step, num]`` pairs."""


@iota.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst,) = i.accesses("dst")
    shape = (dst.partitions, dst.free_size)
    values, offset, dtype = (
        affine_values(i.attrs["pattern"], shape[0], i.attrs["channel_multiplier"]),
        bind.number(i.attrs["offset"]),
        dst.dtype,
    )
    if dtype.is_integer:
        put = bind.raw_store(dst, shape)
        return lambda: put(numerics.from_bits(values + offset(), dtype))
    store = bind.store(dst, shape)
    return lambda: store((values + offset()).float())


@opcode(
    "gpsimd",
    reads="on_true_tile",
    limits=[
        in_sbuf("dst", "on_true_tile"),
        no_packed("dst", "on_true_tile"),
        same_elements("dst", "on_true_tile"),
        op_in("cmp_op", ops.COMPARISONS),
        _affine_pattern,
    ],
)
def affine_select(
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = torch.eq,
    offset: Any = 0,
    name: str | None = None,
) -> None:
    """Keeps the elements for which ``cmp_op(affine value, 0)`` holds (the value of :func:`iota`); others become ``on_false_value``."""


@affine_select.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, tile = i.accesses("dst", "on_true_tile")
    shape = (dst.partitions, dst.free_size)
    load, store = bind.load(tile, shape), bind.store(dst, shape)
    values, function, fill = (
        affine_values(i.attrs["pattern"], shape[0], i.attrs["channel_multiplier"]),
        ops.ALU[i.attrs["cmp_op"]].function,
        i.attrs["on_false_value"],
    )
    if not isinstance(i.attrs["offset"], Register):
        keep = function(values + int(i.attrs["offset"]), 0) != 0
        return lambda: store(torch.where(keep, load(), fill))
    offset = bind.number(i.attrs["offset"])
    return lambda: store(torch.where(function(values + offset(), 0) != 0, load(), fill))


def _local_gather(call: Call) -> None:
    src, index, e = call.access("src_buffer"), call.access("index"), call["num_elem_per_idx"]
    if src.partitions != index.partitions or src.partitions % 16:
        call.fail(f"src_buffer and index need equal partition counts, a multiple of 16, got {src.partitions} and {index.partitions}")
    if e not in (1, 2, 4, 8, 16, 32):
        call.fail(f"num_elem_per_idx must be 1, 2, 4, 8, 16 or 32, got {e}")
    if index.free_size * 16 > 4096:
        call.fail(f"at most 4096 indices per group of 16 partitions, got {index.free_size * 16}")
    valid = call["num_valid_indices"] or index.free_size * 16
    call.attrs["num_valid_indices"] = valid
    if call.access("dst").free_size != valid * e:
        call.fail(f"dst has num_valid_indices * num_elem_per_idx = {valid * e} elements per partition, got {call.access('dst').free_size}")


@opcode(
    "gpsimd",
    reads="src_buffer index",
    limits=[
        in_sbuf("dst", "src_buffer", "index"),
        dtype_in("index", "uint16"),
        same_dtype("dst", "src_buffer"),
        same_partitions("dst", "src_buffer"),
        _local_gather,
    ],
)
def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> None:
    """Each group of 16 partitions flattens its indices (partition first) and gathers, from its own partitions, at each index."""


@local_gather.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, src, index = i.accesses("dst", "src_buffer", "index")
    e, valid, p = i.attrs["num_elem_per_idx"], i.attrs["num_valid_indices"], src.partitions
    source, indices = bind.raw(src, (p, src.free_size)), bind.raw(index, (p, index.free_size))
    put, dtype, limit = bind.raw_store(dst, (p, valid * e)), index.dtype, src.free_size - e

    def step() -> None:
        groups = numerics.as_integers(indices(), dtype).reshape(p // 16, 16, -1).transpose(1, 2).reshape(p // 16, -1)[:, :valid]
        columns = (groups.clamp(max=limit)[:, :, None] + torch.arange(e)).reshape(p // 16, 1, -1).expand(-1, 16, -1)
        put(source().gather(1, columns.reshape(p, -1)))

    return step


@opcode(
    "gpsimd",
    reads="data indices",
    limits=[
        in_sbuf("dst", "data", "indices"),
        dtype_in("indices", "uint32"),
        same_dtype("dst", "data"),
        same_partitions("dst", "data", "indices"),
        same_elements("dst", "indices"),
    ],
)
def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> None:
    """Per partition: ``dst[p] = data[p].flatten()[indices[p]]``."""


@nc_n_gather.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data, indices = i.accesses("dst", "data", "indices")
    p = data.partitions
    source, where, dtype = bind.raw(data, (p, data.free_size)), bind.raw(indices, (p, indices.free_size)), indices.dtype
    put, count, line = bind.raw_store(dst, (p, dst.free_size)), data.free_size, i.line

    def step() -> None:
        columns = numerics.as_integers(where(), dtype)
        if bool((columns >= count).any()):
            from torch_neuronx.nki.errors import NkiValidationError

            raise NkiValidationError(f"{line}: nc_n_gather: Out-of-bound access: index {int(columns.max())} of {count} elements")
        put(source().gather(1, columns))

    return step


def _partition_reduce_shape(call: Call) -> None:
    dst, data = call.access("dst"), call.access("data")
    if dst.partitions != 1 or dst.free_size != data.free_size:
        call.fail(f"dst must be [1, {data.free_size}] for data {data.shape}, got {dst.shape}")


@opcode(
    "gpsimd",
    reads="data",
    limits=[
        on_chip("dst", "data"),
        no_packed("dst", "data"),
        op_in("op", ["add", "average", "maximum", "bitwise_or", "bitwise_and"]),
        _partition_reduce_shape,
    ],
)
def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> None:
    """Reduces over the partitions."""


@tensor_partition_reduce.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst, data), op = i.accesses("dst", "data"), i.attrs["op"]
    shape = (data.partitions, data.free_size)
    if op.startswith("bitwise"):
        raw, put, source, target = bind.raw(data, shape), bind.raw_store(dst, (1, shape[1])), data.dtype, dst.dtype
        return lambda: put(numerics.from_bits(reduce_dims(op, numerics.bits(raw(), source).t(), 1)[None], target))
    load, store = bind.load(data, shape), bind.store(dst, (1, shape[1]))
    return lambda: store(reduce_dims(op, load().t(), 1)[None])


def _nonzero_shapes(call: Call) -> None:
    dst, src = call.access("dst"), call.access("src")
    if dst.free_size != src.free_size + 1:
        call.fail(f"dst has one element more per partition than src, got {dst.free_size} and {src.free_size}")


@opcode(
    "gpsimd",
    reads="src",
    read_write="",
    since="trn2",
    limits=[
        in_sbuf("dst", "src"),
        dtype_in("src", "float32", "int32"),
        dtype_in("dst", "int32"),
        same_partitions("dst", "src"),
        _nonzero_shapes,
    ],
)
def nonzero_with_count(dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None) -> None:
    """Indices of the nonzero elements, then padding, then their count; only partitions 0, 16, ..., 112 take part."""


@nonzero_with_count.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, src = i.accesses("dst", "src")
    p, n = src.partitions, src.free_size
    raw, old, put = bind.raw(src, (p, n)), bind.raw(dst, (p, n + 1)), bind.raw_store(dst, (p, n + 1))
    offset, padding = bind.number(i.attrs["index_offset"]), i.attrs["padding_val"]

    def step() -> None:
        x, result = raw(), old().clone()
        for row in range(0, p, 16):
            found = torch.nonzero(x[row]).flatten()
            result[row] = padding
            result[row, : len(found)] = (found + offset()).to(torch.int32)
            result[row, n] = len(found)
        put(result)

    return step


def _topk_shapes(call: Call) -> None:
    src, val, idx, n = call.access("src"), call.access("val_dst"), call.access("idx_dst"), call["n"]
    k = val.free_size
    if not 8 <= n < 65536:
        call.fail(f"n must be 8 to 65535, got {n}")
    if not 1 <= k <= n or k >= 32768:
        call.fail(f"K, the free size of val_dst, must be 1 to n = {n} and below 32768, got {k}")
    if idx.free_size != k:
        call.fail(f"idx_dst and val_dst need equal free sizes, got {idx.free_size} and {k}")
    if src.partitions % 16 or src.free_size < -(-n // 16):
        call.fail(f"src needs a multiple of 16 partitions and ceil(n / 16) = {-(-n // 16)} elements in each, got {src.shape}")


@opcode(
    "gpsimd",
    writes="val_dst idx_dst",
    reads="src",
    limits=[
        in_sbuf("val_dst", "idx_dst", "src"),
        dtype_in("src", "bfloat16"),
        dtype_in("val_dst", "bfloat16"),
        dtype_in("idx_dst", "uint32"),
        same_partitions("val_dst", "idx_dst"),
        _topk_shapes,
    ],
)
def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> None:
    """The K largest of n values, ascending, with their indices. Value ``i`` lies on partition ``i % 16``, column ``i // 16``."""


@topk.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (val, idx, src), n = i.accesses("val_dst", "idx_dst", "src"), i.attrs["n"]
    p, k = src.partitions, val.free_size
    load, store = bind.load(src, (p, src.free_size)), bind.store(val, (val.partitions, k))
    put, dtype = bind.raw_store(idx, (idx.partitions, k)), idx.dtype
    each = val.partitions // (p // 16)  # rows of the result per group: every partition of it, or one

    def step() -> None:
        groups = load().reshape(p // 16, 16, -1).transpose(1, 2).reshape(p // 16, -1)[:, :n]
        values, places = groups.sort(dim=1, stable=True)
        store(values[:, n - k :].repeat_interleave(each, 0))
        put(numerics.from_bits(places[:, n - k :].repeat_interleave(each, 0), dtype))

    return step


def _bounds_shapes(call: Call) -> None:
    ids, dst = call.access("segment_ids"), call.access("dst")
    if ids.partitions != 1 or dst.partitions != 1 or dst.free_size != 2 * ids.free_size:
        call.fail(f"takes segment_ids (1, n) and dst (1, 2, n), got {ids.shape} and {dst.shape}")


@opcode(
    "gpsimd",
    reads="segment_ids",
    limits=[
        in_sbuf("dst", "segment_ids"),
        dtype_in("segment_ids", "float32", "int32"),
        dtype_in("dst", "float32", "int32"),
        max_free("segment_ids", 65536),
        _bounds_shapes,
    ],
)
def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> None:
    """For each element the start and the end of its segment; id 0 is padding: start n, end -1."""


@sequence_bounds.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, ids = i.accesses("dst", "segment_ids")
    n = ids.free_size
    load, store = bind.load(ids, (n,)), bind.store(dst, (1, 2, n))

    def step() -> None:
        x = load()
        same = x[None, :] == x[:, None]
        start = same.to(torch.uint8).argmax(1)
        end = n - same.flip(1).to(torch.uint8).argmax(1)
        padding = x == 0
        start, end = torch.where(padding, n, start), torch.where(padding, -1, end)
        store(torch.stack([start, end])[None].float())

    return step
