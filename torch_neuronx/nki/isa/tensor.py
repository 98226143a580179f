"""Tensor engine: matrix products and transposes."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.nki.check import crosses_bank
from torch_neuronx.nki.instruction import Engine, Instruction
from torch_neuronx.nki.isa.constants import engine, matmul_perf_mode
from torch_neuronx.nki.limits import dtype_in, in_region, in_sbuf, no_packed, same_partitions
from torch_neuronx.nki.memory import AccessPattern, MemoryRegion
from torch_neuronx.nki.opcode import Call, opcode
from torch_neuronx.nki.simulator import Binder, Step
from torch_neuronx.nki.tensor import NkiTensor

MATMUL_DTYPES = ("float8_e4m3", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32", "float8_e4m3fn")
_WIDE = ("float32", "tfloat32")


def moving_limit(call: Call) -> int:
    """Largest free size of the moving operand: one PSUM bank, or all banks from trn3 on."""
    if call.target.generation < 4:
        return 512
    return 4096 if call.access("dst").itemsize == 4 else 8192


def _matmul_shapes(call: Call) -> None:
    dst, stationary, moving = call.access("dst"), call.access("stationary"), call.access("moving")
    double = call.attrs["perf_mode"] == "double_row"
    rows = 2 if double else 1
    if stationary.free_size > 128 * rows:
        call.fail(f"stationary free size {stationary.free_size} exceeds {128 * rows} {stationary.shape}")
    if moving.free_size > moving_limit(call) * rows:
        call.fail(f"moving free size {moving.free_size} exceeds {moving_limit(call) * rows} on {call.target.name} {moving.shape}")
    m, n = stationary.free_size // rows, moving.free_size // rows
    if dst.partitions != m or dst.free_size != n:
        call.fail(f"dst must be [{m}, {n}] for stationary {stationary.shape} and moving {moving.shape}, got {dst.shape}")
    if call.target.generation < 4 and crosses_bank(dst):
        call.fail(f"dst {dst.shape} {dst.dtype} lies in more than one PSUM bank of 2048 bytes per partition")


def _matmul_dtypes(call: Call) -> None:
    dst, stationary, moving = call.access("dst"), call.access("stationary"), call.access("moving")
    wide = [a.dtype.name in _WIDE for a in (stationary, moving)]
    if wide[0] != wide[1]:
        call.fail(f"float32 and tfloat32 go only with each other, got stationary {stationary.dtype}, moving {moving.dtype}", ValueError)
    names = {stationary.dtype.name, moving.dtype.name}
    if "float8_e4m3fn" in names:
        if call.target.generation < 4:
            call.fail(f"float8_e4m3fn needs trn3; this kernel is traced for {call.target.name}. Use float8_e4m3", ValueError)
        if "float8_e4m3" in names:
            call.fail("float8_e4m3 and float8_e4m3fn cannot be mixed in one matmul", ValueError)
    if call.attrs["is_transpose"]:
        if dst.dtype is not moving.dtype and dst.dtype is not stationary.dtype and dst.itemsize < 2:
            call.fail(f"is_transpose keeps the dtype of the data, got {dst.dtype} for {stationary.dtype}", ValueError)
    elif dst.dtype.name != "float32" and not (dst.dtype.name == "bfloat16" and call.target.generation >= 4):
        allowed = "float32 or bfloat16" if call.target.generation >= 4 else "float32"
        call.fail(f"dst must be {allowed} on {call.target.name}, got {dst.dtype}", ValueError)


def _indirect(call: Call) -> None:
    for name in ("dst", "stationary", "moving"):
        access = call.access(name)
        if access.dynamic is None or access.dynamic.kind != "indirect":
            continue
        if name != "dst" and access.itemsize > 2:
            call.fail(f"{name} as an .indirect() view must be of 16 or 8 bits, got {access.dtype}", ValueError)
        if call.attrs["tile_position"] or (name == "moving" and call.attrs["is_transpose"]):
            call.fail(f"{name} cannot be an .indirect() view with tile_position, nor moving with is_transpose")


def _perf_mode(call: Call) -> None:
    mode = call.attrs["perf_mode"]
    if isinstance(mode, matmul_perf_mode):
        mode = mode.value
    mode = {"double_row_gen3": "double_row"}.get(mode, mode)
    if mode not in [m.value for m in matmul_perf_mode]:
        call.fail(f"perf_mode must be a member of nki.isa.matmul_perf_mode, got {mode!r}", TypeError)
    call.attrs["perf_mode"] = mode
    if mode == "none":
        return
    if mode != "double_row":
        call.fail(f"perf_mode {mode} is not documented for NKI; use double_row")
    if call.target.generation < 3:
        call.fail(f"perf_mode double_row needs trn2; this kernel is traced for {call.target.name}")
    for name in ("stationary", "moving"):
        access = call.access(name)
        if access.itemsize != 1:
            call.fail(f"perf_mode double_row needs float8 operands, {name} is {access.dtype}", ValueError)
        if len(access.shape) < 3 or access.shape[1] != 2:
            call.fail(f"perf_mode double_row needs {name} of shape [P, 2, F], got {access.shape}")
    if call.attrs["is_transpose"]:
        call.fail("perf_mode double_row cannot transpose")
    if call.attrs["tile_size"] and call.attrs["tile_size"][1] != 128:
        call.fail("perf_mode double_row cannot tile columns")


def tile_of_array(call: Call) -> None:
    """``tile_position`` and ``tile_size``: a part of the 128 x 128 array."""
    position, size = tuple(call.attrs["tile_position"] or ()), tuple(call.attrs["tile_size"] or ())
    call.attrs["tile_position"], call.attrs["tile_size"] = position, size
    if bool(position) != bool(size):
        call.fail("needs both tile_position and tile_size, or neither")
    if not position:
        return
    least = 64 if call.target.generation < 3 else 32
    for place, start, extent in (("row", position[0], size[0]), ("column", position[1], size[1])):
        if extent not in (least, 64, 128) or start % extent or start + extent > 128:
            call.fail(f"tile_position {position} with tile_size {size}: {place}s are multiples of {least}, positions multiples of sizes")
    stationary = call.access("stationary")
    if stationary.partitions > size[0] or stationary.free_size // (2 if call.attrs.get("perf_mode") == "double_row" else 1) > size[1]:
        call.fail(f"stationary {stationary.shape} exceeds tile_size {size}")


@opcode(
    "tensor",
    reads="stationary moving",
    limits=[
        in_sbuf("stationary", "moving"),
        in_region(MemoryRegion.psum, "dst"),
        dtype_in("stationary", *MATMUL_DTYPES),
        dtype_in("moving", *MATMUL_DTYPES),
        same_partitions("stationary", "moving"),
        _perf_mode,
        tile_of_array,
        _matmul_shapes,
        _matmul_dtypes,
        _indirect,
    ],
    indirect="dst stationary moving",
)
def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: Any = matmul_perf_mode.none,
    name: str | None = None,
) -> None:
    """``dst (PSUM) = stationary.T @ moving``, or ``+=``: ``accumulate`` None overwrites what no matmul wrote before and adds to the rest.

    Products are exact, sums float32. ``perf_mode`` double_row contracts over ``[P, 2]``.
    """


@nc_matmul.semantics
def _(i: Instruction, bind: Binder) -> Any:
    stationary, moving, dst = i.accesses("stationary", "moving", "dst")
    if i.attrs["is_transpose"]:
        return _transpose_by_matmul(bind, dst, stationary, moving)
    p, rows = stationary.partitions, 2 if i.attrs["perf_mode"] == "double_row" else 1
    m, n = stationary.free_size // rows, moving.free_size // rows
    fast = _tile_product(i, bind, dst, stationary, moving, (p, m, n)) if rows == 1 else None
    if fast is not None:
        return fast
    a, b = bind.load(stationary, (p, rows * m)), bind.load(moving, (p, rows * n))

    def product() -> torch.Tensor:
        return a().reshape(p * rows, m).t().mm(b().reshape(p * rows, n))

    view = bind.direct(dst, (m, n)) if dst.dtype.name == "float32" else None
    if i.attrs["accumulate"] is False:
        put = bind.store(dst, (m, n))
        return lambda: put(product())
    if i.attrs["accumulate"] is True and view is not None and rows == 1:
        return lambda: torch.addmm(view, a().t(), b(), out=view)
    return accumulating(i, bind, dst, (m, n), product)


def accumulating(i: Instruction, bind: Binder, dst: AccessPattern, shape: tuple[int, int], product: Any) -> Step:
    """Stores a product as ``attrs["accumulate"]`` says: True, False, "history" (mask known), or "dynamic" (mask kept while running)."""
    old, put = bind.load(dst, shape), bind.store(dst, shape)
    how = i.attrs["accumulate"]
    if how is True:
        return lambda: put(old() + product())
    if how is False:
        return lambda: put(product())
    if how == "history":
        seen = i.attrs["history"].reshape(shape)
        return lambda: put(torch.where(seen, old(), torch.zeros((), dtype=torch.float32)) + product())
    flags = bind.matmul_history(dst.buffer).as_strided(shape, dst.split(shape) or (), dst.offset)

    def step() -> None:
        put(torch.where(flags, old(), torch.zeros((), dtype=torch.float32)) + product())
        flags.fill_(True)

    return step


def _tile_product(
    i: Instruction, bind: Binder, dst: AccessPattern, stationary: AccessPattern, moving: AccessPattern, sizes: tuple[int, int, int]
) -> Any:
    """The same product by the CPU's own tile instructions, where it has them: operands of 16 bits, or float8 widened to them (exact)."""
    from torch_neuronx import _C

    p, m, n = sizes
    names = {stationary.dtype.name, moving.dtype.name}
    kind = torch.float16 if names == {"float16"} else torch.bfloat16
    if not names <= {"bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"} and names != {"float16"}:
        return None
    if dst.dtype.name != "float32" or i.attrs["accumulate"] not in (True, False) or stationary.is_dynamic or moving.is_dynamic or m < 16:
        return None
    view = bind.direct(dst, (m, n))
    if view is None or view.stride(1) != 1 or not _C._nki_has_tile_product(torch.empty(1, dtype=kind)):
        return None
    k = p + p % 2
    left, first = bind.derived(
        stationary, "stationary", lambda: torch.zeros(m, k, dtype=kind), _stationary_filler(bind, stationary, (p, m))
    )
    right, second = bind.derived(
        moving, "moving", lambda: torch.zeros(_C._nki_packed_size(k, n), dtype=kind), _moving_filler(bind, moving, (p, n), kind)
    )
    multiply, accumulate = _C._nki_multiply, i.attrs["accumulate"]
    return [*first, *second, lambda: multiply(view, left, right, accumulate)]


def _values(bind: Binder, access: AccessPattern, shape: tuple[int, int]) -> Any:
    return bind.raw(access, shape) if access.dtype.name in ("bfloat16", "float16") else bind.load(access, shape)


def _stationary_filler(bind: Binder, access: AccessPattern, shape: tuple[int, int]) -> Any:
    values = _values(bind, access, shape)
    return lambda packed: packed[:, : shape[0]].copy_(values().t())


def _moving_filler(bind: Binder, access: AccessPattern, shape: tuple[int, int], kind: torch.dtype) -> Any:
    from torch_neuronx import _C

    values, pack, (p, n) = _values(bind, access, shape), _C._nki_pack_moving, shape

    def fill(packed: torch.Tensor) -> None:
        tile = values().to(kind)
        if p % 2 or tile.stride(1) != 1:
            padded = torch.zeros(p + p % 2, n, dtype=kind)
            padded[:p] = tile
            tile = padded
        pack(tile, packed)

    return fill


def _transpose_by_matmul(bind: Binder, dst: AccessPattern, stationary: AccessPattern, moving: AccessPattern) -> Step:
    """Transpose mode: one operand is an identity, the other one is moved bit by bit. From trn2 on nothing is computed."""
    m, n = stationary.free_size, moving.free_size
    p = stationary.partitions
    a, b, put = bind.load(stationary, (p, m)), bind.load(moving, (p, n)), bind.store(dst, (m, n))

    def step() -> None:
        left, right = a(), b()
        # Exact also for NaN and infinities, which a product with zeros would spread.
        if right.shape[0] == right.shape[1] and torch.equal(right, torch.eye(p)):
            put(left.t())
        elif left.shape[0] == left.shape[1] and torch.equal(left, torch.eye(p)):
            put(right)
        else:
            put(left.t().mm(right))

    return step


def _transpose_engine(call: Call) -> Engine:
    dst, data = call.access("dst"), call.access("data")
    if dst.region is MemoryRegion.psum and data.region is MemoryRegion.sbuf and (data.partitions > 32 or data.free_size > 32):
        return Engine.tensor
    if data.partitions <= 32 and data.free_size <= 32:
        return Engine.vector
    return Engine.tensor


def _transpose_shapes(call: Call) -> None:
    dst, data = call.access("dst"), call.access("data")
    p, f = data.partitions, data.free_size
    if call.engine is Engine.tensor:
        if p > 128 or f > 128:
            call.fail(f"Tensor engine transpose requires shape <= [128,128], got [{p},{f}]")
        if dst.region is not MemoryRegion.psum or data.region is not MemoryRegion.sbuf:
            call.fail(f"on the Tensor engine reads SBUF and writes PSUM, got {data.region} and {dst.region}")
    elif p > 32 or f > 32:
        call.fail(f"Vector engine transpose requires shape <= [32,32], got [{p},{f}]")
    if dst.partitions != f or dst.free_size != p:
        call.fail(f"dst must be [{f}, {p}] for data {data.shape}, got {dst.shape}")
    widened = data.itemsize == 1 and dst.itemsize == 2 and call.engine is Engine.tensor
    if dst.dtype is not data.dtype and not widened:
        call.fail(f"keeps the dtype: data is {data.dtype}, dst is {dst.dtype}", ValueError)


@opcode("tensor vector", reads="data", limits=[no_packed("data"), _transpose_shapes], choose=_transpose_engine)
def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: Engine = engine.unknown, name: str | None = None) -> None:
    """``dst = data.T`` between the partition and the flattened free dimensions: [128, 128] on the Tensor engine, [32, 32] on Vector."""


@nc_transpose.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, data = i.accesses("dst", "data")
    p, f = data.partitions, data.free_size
    if dst.dtype is data.dtype:
        source, put = bind.raw(data, (p, f)), bind.raw_store(dst, (f, p))
        spreads = i.engine is Engine.tensor and bind.target.generation < 3 and data.dtype.is_float
        if spreads:
            load, store = bind.load(data, (p, f)), bind.store(dst, (f, p))
            return lambda: store(_through_products(load()))
        return lambda: put(source().t())
    raw, put, storage = bind.raw(data, (p, f)), bind.raw_store(dst, (f, p)), dst.dtype.storage  # float8 in cells of 16 bits
    return lambda: put(raw().view(torch.uint8).t().to(torch.int16).view(storage))


def _through_products(x: torch.Tensor) -> torch.Tensor:
    """A transpose that is a product with the identity, as on trn1: NaN and infinities spread over their row of partitions."""
    return x.t().mm(torch.eye(x.shape[0]))


__all__ = ["nc_matmul", "nc_transpose"]
