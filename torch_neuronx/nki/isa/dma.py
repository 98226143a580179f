"""DMA engines: copies between HBM and SBUF, transposing and adding copies."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.nki import numerics
from torch_neuronx.nki.dynamic_access import DynamicAccess
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.instruction import Engine, Instruction
from torch_neuronx.nki.isa.constants import dge_mode, engine, oob_mode
from torch_neuronx.nki.limits import enum_member, same_dtype
from torch_neuronx.nki.memory import AccessPattern, MemoryRegion
from torch_neuronx.nki.opcode import Call, opcode
from torch_neuronx.nki.simulator import Binder, Step
from torch_neuronx.nki.tensor import NkiTensor

_PERMUTATIONS = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _accesses(call: Call) -> list[tuple[str, AccessPattern]]:
    found = []
    for name, value in call.operands.items():
        found += [(name, v) for v in (value if isinstance(value, list) else [value]) if isinstance(v, AccessPattern)]
    return found


def _kind(access: AccessPattern) -> str | None:
    return access.dynamic.kind if access.dynamic is not None else None


def _no_psum(call: Call) -> None:
    for name, access in _accesses(call):
        if access.region is MemoryRegion.psum:
            call.fail(f"{name} is in PSUM, which the DMA engines cannot access. Copy it to SBUF first (nisa.tensor_copy)")


def _indices(call: Call) -> None:
    for name, access in _accesses(call):
        if _kind(access) == "vector":
            index = access.dynamic.value  # type: ignore[union-attr]
            assert isinstance(index, AccessPattern)
            if index.size < access.partitions:
                call.fail(f"{name}: {index.size} row indices for {access.partitions} rows")


def _same_count(call: Call) -> None:
    dst, src = call.access("dst"), call.access("src")
    if dst.size != src.size:
        call.fail(
            f"requires src and dst to have the same number of elements, got src={src.shape} ({src.size}), dst={dst.shape} ({dst.size})"
        )


def _descriptors(call: Call) -> None:
    """Resolves who generates the descriptors and which engine starts the DMA (``attrs["dge"]`` and ``attrs["trigger"]``)."""
    mode, wanted = call.attrs.get("dge_mode", dge_mode.unknown), call.attrs.get("engine", Engine.unknown)
    kinds = {_kind(access) for _, access in _accesses(call)}
    if "vector" in kinds and mode not in (dge_mode.unknown, dge_mode.swdge):
        call.fail(f"with vector_offset needs dge_mode unknown or swdge, got {mode.name}")
    if mode is dge_mode.none and kinds - {None}:
        call.fail("dge_mode none has static addresses only")
    if mode is dge_mode.hwdge and call.target.generation < 3:
        call.fail(f"dge_mode hwdge needs trn2; this kernel is traced for {call.target.name}")
    if mode is dge_mode.hwdge and len({access.dtype for _, access in _accesses(call)}) > 1:
        call.fail(f"dge_mode hwdge needs equal dtypes, got {', '.join(str(a.dtype) for _, a in _accesses(call))}", ValueError)
    if wanted is not Engine.unknown:
        if wanted not in (Engine.sync, Engine.scalar):
            call.fail(f"engine may be sync or scalar, got {wanted.name}")
        if mode is not dge_mode.hwdge:
            call.fail("engine goes with dge_mode hwdge only")
    if mode is dge_mode.unknown:
        mode = dge_mode.swdge if "vector" in kinds else dge_mode.hwdge if kinds - {None} and call.target.generation >= 3 else dge_mode.none
        if mode is dge_mode.hwdge and len({access.dtype for _, access in _accesses(call)}) > 1:
            mode = dge_mode.swdge
    call.attrs["dge"] = mode.name
    call.attrs["trigger"] = Engine.gpsimd if mode is dge_mode.swdge else wanted if wanted is not Engine.unknown else Engine.sync


def _priority(call: Call) -> None:
    priority = call["priority"]
    if priority is None:
        return
    if call.target.generation < 4:
        call.fail(f"priority needs trn3; this kernel is traced for {call.target.name}")
    if priority not in (0, 1, 2, 3):
        call.fail(f"priority is 0 (highest) to 3, got {priority}")


def _no_packed_cast(call: Call) -> None:
    dst, src = call.access("dst"), call.access("src")
    if dst.dtype is not src.dtype and "packed" in (dst.dtype.kind, src.dtype.kind):
        call.fail(f"cannot cast packed types: {src.dtype} to {dst.dtype}", ValueError)


@opcode(
    "dma",
    reads="src",
    limits=[
        enum_member("oob_mode", oob_mode),
        enum_member("dge_mode", dge_mode),
        _no_psum,
        _same_count,
        _no_packed_cast,
        _indices,
        _descriptors,
        _priority,
    ],
)
def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: oob_mode = oob_mode.error,
    dge_mode: dge_mode = dge_mode.unknown,
    engine: Engine = engine.unknown,
    name: str | None = None,
) -> None:
    """``dst = src`` between HBM and SBUF in any combination, through float32 when the dtypes differ.

    A view with ``vector_offset`` gathers (src) or scatters (dst) rows; ``oob_mode.skip`` leaves out rows at indices out of range.
    """


@dma_copy.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, src = i.accesses("dst", "src")
    skip = i.attrs["oob_mode"] is oob_mode.skip
    if skip and (dst.is_dynamic or src.is_dynamic):
        return _skipping_copy(bind, dst, src)
    shape = src.shape if dst.is_dynamic or src.is_dynamic else bind.shape(dst, src)
    if dst.dtype is src.dtype:
        source, target = bind._try_view(src, shape), bind._try_view(dst, shape)
        if source is not None and target is not None:
            return lambda: target.copy_(source)
        load, put = bind.raw(src, shape), bind.raw_store(dst, shape)
        return lambda: put(load())
    load, store = bind.load(src, shape), bind.store(dst, shape)
    return lambda: store(load())


def _converter(src: AccessPattern, dst: AccessPattern) -> Any:
    if src.dtype is dst.dtype:
        return lambda x: x
    return lambda x: numerics.from_float(numerics.to_float(x, src.dtype), dst.dtype)


def _skipping_copy(bind: Binder, dst: AccessPattern, src: AccessPattern) -> Step:
    """Rows whose address is out of range are left out; bits are kept for equal dtypes."""
    convert = _converter(src, dst)
    rows = src.shape[0] if src.is_dynamic else dst.shape[0]
    source, target = _rows(bind, src, rows), _rows(bind, dst, rows)

    def step() -> None:
        from_table, from_rows, readable = source()
        to_table, to_rows, writable = target()
        keep = readable & writable
        if bool(keep.any()):
            to_table.index_copy_(0, to_rows[keep], convert(from_table.index_select(0, from_rows[keep])).reshape(-1, *to_table.shape[1:]))

    return step


def _rows(bind: Binder, access: AccessPattern, rows: int) -> Any:
    """A function that gives ``(table, row of the table for each row, which rows exist)``."""
    everything, all_there = torch.arange(rows), torch.ones(rows, dtype=torch.bool)
    if not access.is_dynamic:
        shape = access.shape if access.shape[0] == rows else (rows, access.size // rows)
        view = bind.view(access, shape)
        return lambda: (view, everything, all_there)
    dynamic = DynamicAccess(bind, access)
    if dynamic.dynamic.kind == "vector":
        return dynamic.rows

    def window() -> Any:
        stride, free = access.pattern[0][0], access.pattern[1:]
        offset = access.offset + dynamic.value() * dynamic.dynamic.scale
        starts = offset + everything * stride
        total = access.buffer.size * access.buffer.dtype.bytes // access.itemsize
        exists = (starts >= 0) & (starts + sum(s * (c - 1) for s, c in free) < total)
        if not bool(exists.any()):
            return dynamic.flat[:0].reshape(0, *(c for _, c in free)), everything, exists
        first = int(starts[exists][0])
        table = dynamic.flat.as_strided((int(exists.sum()), *(c for _, c in free)), (stride, *(s for s, _ in free)), first)
        return table, everything - int(exists.nonzero()[0]), exists

    return window


def _transpose_axes(call: Call) -> None:
    src, dst, axes = call.access("src"), call.access("dst"), call["axes"]
    rank = len(src.shape)
    if rank not in _PERMUTATIONS:
        call.fail(f"takes 2 to 4 dimensions, got {src.shape}")
    if axes is not None and tuple(axes) != _PERMUTATIONS[rank]:
        call.fail(f"axes of {rank} dimensions must be {_PERMUTATIONS[rank]}, got {tuple(axes)}")
    call.attrs["axes"] = _PERMUTATIONS[rank]
    expected = tuple(src.shape[a] for a in _PERMUTATIONS[rank])
    if dst.shape != expected:
        call.fail(f"dst shape must be the transposed src shape {expected}, got {dst.shape}")


def _transpose_limits(call: Call) -> None:
    src, mode = call.access("src"), call["dge_mode"]
    if _kind(src) == "vector":
        index = src.dynamic.value  # type: ignore[union-attr]
        assert isinstance(index, AccessPattern)
        if call.target.generation < 3:
            call.fail(f"with vector_offset needs trn2; this kernel is traced for {call.target.name}")
        if src.itemsize != 2 or src.shape[-1] > 128 or src.shape[0] % 16:
            call.fail(
                f"with vector_offset needs a 2-byte dtype, src.shape[-1] <= 128 and src.shape[0] % 16 == 0, got {src.shape} {src.dtype}"
            )
        if not 16 <= index.partitions <= 128 or index.partitions % 16 or (index.free_size > 1 and index.partitions != 128):
            call.fail(f"index must have 16 to 128 partitions, a multiple of 16 (128 for several columns), got {index.shape}")
        return
    if call["oob_mode"] is oob_mode.skip:
        call.fail("oob_mode.skip goes with a src that has vector_offset only")
    if mode is dge_mode.swdge:
        call.fail("dge_mode swdge goes with a src that has vector_offset only")
    if mode is dge_mode.hwdge:
        rows, inner = src.shape[0], src.shape[-1]
        fits = rows == 16 if len(src.shape) == 2 else rows in (1, 2, 4, 8, 16) and rows * src.shape[-2] % 16 == 0
        if not fits or inner > 128 or src.itemsize != 2:
            call.fail(
                "dge_mode hwdge needs src.shape[0] == 16 (2-D) or in {1, 2, 4, 8, 16} with src.shape[0] * src.shape[-2] % 16 == 0, "
                f"src.shape[-1] <= 128 and a 2-byte dtype, got {src.shape} {src.dtype}"
            )


@opcode(
    "dma",
    reads="src",
    limits=[
        enum_member("oob_mode", oob_mode),
        enum_member("dge_mode", dge_mode),
        _no_psum,
        same_dtype("src", "dst"),
        _transpose_axes,
        _transpose_limits,
        _descriptors,
        _priority,
    ],
)
def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Any = None,
    priority: int | None = None,
    dge_mode: dge_mode = dge_mode.unknown,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> None:
    """A copy with the dimensions reversed (4-D: first and last exchanged). With ``vector_offset``: the transpose of gathered rows, whose
    indices are read column by column."""


@dma_transpose.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst, src), axes = i.accesses("dst", "src"), i.attrs["axes"]
    put = bind.raw_store(dst)
    if _kind(src) != "vector":
        load = bind.raw(src)
        return lambda: put(load().permute(axes))
    dynamic, skip, line = DynamicAccess(bind, src), i.attrs["oob_mode"] is oob_mode.skip, i.line
    index = src.dynamic.value  # type: ignore[union-attr]
    assert isinstance(index, AccessPattern)
    load_index, old = bind.raw(index, (index.partitions, index.free_size)), bind.raw(dst)

    def step() -> None:
        table, _, _ = dynamic.rows()
        rows = numerics.as_integers(load_index(), index.dtype).t().reshape(-1)[: src.shape[0]]
        valid = (rows >= 0) & (rows < table.shape[0])
        if not bool(valid.all()):
            if not skip:
                raise NkiValidationError(f"{line}: dma_transpose: Out-of-bound access: row {int(rows[~valid][0])} of {table.shape[0]}")
            result = old().permute(axes).clone()
            result[valid] = table.index_select(0, rows[valid])
        else:
            result = table.index_select(0, rows)
        put(result.permute(axes))

    return step


def _compute_rules(call: Call) -> None:
    dst, srcs = call.access("dst"), call["srcs"]
    if not isinstance(srcs, list) or not srcs or len(srcs) > 16:
        call.fail(f"srcs is a list of 1 to 16 tensors, got {len(srcs) if isinstance(srcs, list) else type(srcs).__name__}")
    if call.attrs["reduce_op"] != "add":
        call.fail(f"reduce_op may only be add, got {call.attrs['reduce_op']}")
    scales = call["scales"]
    if scales is not None and any(float(s) != 1.0 for s in scales):
        call.fail(f"scales must be None or all 1.0, got {list(scales)}")
    for k, src in enumerate(srcs):
        if src.size != dst.size:
            call.fail(f"srcs[{k}] has {src.size} elements, dst has {dst.size}")
    if any(_kind(a) == "vector" for a in [dst, *srcs]):
        if len(srcs) != 2:
            call.fail(f"with vector_offset takes exactly 2 sources, one of them dst itself, got {len(srcs)}")
        if not call["unique_indices"]:
            call.fail("with vector_offset needs unique_indices=True")
    elif any(_kind(a) for a in [dst, *srcs]):
        call.fail("without vector_offset has compile-time addresses only")


@opcode("dma", reads="srcs", limits=[enum_member("oob_mode", oob_mode), _no_psum, _compute_rules, _indices, _descriptors])
def dma_compute(
    dst: NkiTensor,
    srcs: list[NkiTensor],
    reduce_op: Any,
    scales: Any = None,
    unique_indices: bool = True,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> None:
    """``dst = sum(srcs)`` in float32. With ``vector_offset``: adds rows to gathered or scattered rows."""


@dma_compute.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst,) = i.accesses("dst")
    srcs: list[AccessPattern] = i.operands["srcs"]  # type: ignore[assignment]
    indexed = next((a for a in [dst, *srcs] if _kind(a) == "vector"), None)
    if indexed is not None and i.attrs["oob_mode"] is oob_mode.skip:
        return _skipping_sum(bind, dst, srcs)
    loads, store = [bind.load(src, src.shape if src.is_dynamic else dst.shape) for src in srcs], bind.store(dst)
    shape = dst.shape
    line = i.line
    unique = _uniqueness(bind, indexed, line) if _kind(dst) == "vector" else None

    def step() -> None:
        if unique is not None:
            unique()
        total = loads[0]().reshape(shape).float()
        for load in loads[1:]:
            total = total + load().reshape(shape)
        store(total)

    return step


def _uniqueness(bind: Binder, access: AccessPattern | None, line: object) -> Any:
    """Two rows that add to one address at the same time lose one of the sums."""
    assert access is not None
    dynamic = DynamicAccess(bind, access)

    def check() -> None:
        _, rows, valid = dynamic.rows()
        rows = rows[valid]
        if rows.unique().numel() != rows.numel():
            raise NkiValidationError(f"{line}: dma_compute: unique_indices=True, but row indices occur more than once: the sums would race")

    return check


def _skipping_sum(bind: Binder, dst: AccessPattern, srcs: list[AccessPattern]) -> Step:
    count = dst.shape[0]
    target, sources = _rows(bind, dst, count), [_rows(bind, src, count) for src in srcs]

    def step() -> None:
        to_table, to_rows, keep = target()
        parts = [source() for source in sources]
        for _, _, exists in parts:
            keep = keep & exists
        if bool(keep.any()):
            total = sum(
                numerics.to_float(table.index_select(0, rows[keep]), src.dtype).reshape(int(keep.sum()), -1)
                for (table, rows, _), src in zip(parts, srcs, strict=True)
            )
            to_table.index_copy_(0, to_rows[keep], numerics.from_float(total, dst.dtype).reshape(-1, *to_table.shape[1:]))  # type: ignore[arg-type]

    return step


__all__ = ["dma_compute", "dma_copy", "dma_transpose"]
