"""Microscaling formats (trn3): groups of 32 values, 8 partitions by 4 neighbours, that share a power of two.

A packed element holds the 4 neighbours. The scale of a group lies in the quadrant (32 partitions) of its data, on one of 4 rows of it.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from torch_neuronx.nki.dtypes import DType, dtype
from torch_neuronx.nki.instruction import Instruction
from torch_neuronx.nki.isa.tensor import accumulating, moving_limit, tile_of_array
from torch_neuronx.nki.limits import dtype_in, in_region, in_sbuf, same_partitions
from torch_neuronx.nki.memory import AccessPattern, MemoryRegion
from torch_neuronx.nki.opcode import Call, opcode
from torch_neuronx.nki.simulator import Binder, Step
from torch_neuronx.nki.tensor import NkiTensor

PACKED = {"float8_e4m3fn_x4": "float8_e4m3fn", "float8_e5m2_x4": "float8_e5m2", "float4_e2m1fn_x4": "float4_e2m1fn"}
_EMAX = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SCALES = ("float8_e8m0fnu", "uint8")


@functools.cache
def _fp4_values() -> torch.Tensor:
    return torch.tensor([*_FP4, *(-x for x in _FP4)], dtype=torch.float32)


def unpack(stored: torch.Tensor, kind: DType) -> torch.Tensor:
    """float32 ``[P, F, 4]`` of packed elements ``[P, F]``."""
    if kind.name == "float4_e2m1fn_x4":
        code = stored.to(torch.int64) & 0xFFFF
        lanes = torch.stack([(code >> (4 * k)) & 15 for k in range(4)], -1)
        return _fp4_values()[lanes]
    lanes8 = stored.contiguous().view(torch.uint8).reshape(*stored.shape, 4)
    return lanes8.view(dtype(PACKED[kind.name]).storage).float()


def pack(values: torch.Tensor, kind: DType) -> torch.Tensor:
    """Packed elements ``[P, F]`` of float32 ``[P, F, 4]``, rounded to nearest even; finite values saturate."""
    limit = torch.finfo(dtype(PACKED[kind.name]).storage).max
    lanes = values.clamp(-limit, limit).to(dtype(PACKED[kind.name]).storage)
    return lanes.contiguous().view(torch.int32).squeeze(-1)


def scale_rows(partitions: int) -> torch.Tensor:
    """On which row of the scale tile the scales of each group of 8 partitions lie."""
    group = torch.arange(partitions // 8)
    return group // 4 * 32 + group % 4


def _scale_tile(call: Call, name: str, data: AccessPattern, columns: int) -> None:
    scale = call.access(name)
    needed = int(scale_rows(data.partitions)[-1]) + 1
    if scale.partitions < needed or scale.free_size != columns:
        call.fail(
            f"{name} needs at least {needed} partitions with {columns} scales for data {data.shape} "
            f"(rows 0 to 3 of each 32), got {scale.shape}"
        )


def _quantize_shapes(call: Call) -> None:
    src, dst = call.access("src"), call.access("dst")
    if src.partitions % 32 or src.partitions > 128:
        call.fail(f"src partitions must be a multiple of 32 up to 128, got {src.partitions}")
    if src.free_size % 4 or dst.free_size != src.free_size // 4:
        call.fail(f"src free size must be a multiple of 4 and dst a quarter of it, got {src.shape} and {dst.shape}")
    _scale_tile(call, "dst_scale", src, src.free_size // 4)


@opcode(
    "vector",
    writes="dst dst_scale",
    reads="src",
    since="trn3",
    limits=[
        in_sbuf("dst", "src", "dst_scale"),
        dtype_in("src", "float16", "bfloat16"),
        dtype_in("dst", "float8_e5m2_x4", "float8_e4m3fn_x4"),
        dtype_in("dst_scale", *_SCALES),
        same_partitions("dst", "src"),
        _quantize_shapes,
    ],
)
def quantize_mx(dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None) -> None:
    """MXFP8 data and scales of a 16-bit tile; the layout is kept. ``TORCH_NEURONX_NKI_MX_SCALE=ocp`` uses the scale rule of NKI 0.4."""


@quantize_mx.semantics
def _(i: Instruction, bind: Binder) -> Step:
    dst, src, scale = i.accesses("dst", "src", "dst_scale")
    p, f, kind = src.partitions, src.free_size // 4, dst.dtype
    load, put = bind.load(src, (p, f, 4)), bind.raw_store(dst, (p, f))
    old, put_scale = bind.raw(scale, (scale.partitions, f)), bind.raw_store(scale, (scale.partitions, f))
    rows = scale_rows(p)

    def step() -> None:
        data, code = quantize(load(), kind)
        put(data)
        scales = old().view(torch.uint8).clone()
        scales[rows] = code
        put_scale(scales.view(scale.dtype.storage))

    return step


def quantize(values: torch.Tensor, kind: DType) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed data ``[P, F]`` and scale codes uint8 ``[P // 8, F]`` of float32 ``[P, F, 4]``."""
    p, f, _ = values.shape
    groups = values.reshape(p // 8, 8, f, 4)
    amax = groups.abs().amax((1, 3))
    headroom = 0 if os.environ.get("TORCH_NEURONX_NKI_MX_SCALE") == "ocp" else 1
    exponent = torch.frexp(amax).exponent - 1 - (_EMAX[kind.name] - headroom)
    exponent = torch.where(amax == 0, -127, exponent).clamp(-127, 127)
    scaled = groups * torch.exp2(-exponent.double()).float()[:, None, :, None]
    return pack(scaled.reshape(p, f, 4), kind), (exponent + 127).to(torch.uint8)


def _mx_shapes(call: Call) -> None:
    dst, stationary, moving = call.access("dst"), call.access("stationary"), call.access("moving")
    m, n = stationary.free_size, moving.free_size
    if stationary.partitions % 32 or stationary.partitions > 128:
        call.fail(f"partitions must be a multiple of 32 up to 128, got {stationary.partitions}")
    if m % 2 or m > 128:
        call.fail(f"stationary free size must be even and at most 128, got {m}")
    if n > moving_limit(call):
        call.fail(f"moving free size {n} exceeds {moving_limit(call)}")
    if dst.partitions != m or dst.free_size != n:
        call.fail(f"dst must be [{m}, {n}], got {dst.shape}")
    if call.attrs["tile_size"] and call.attrs["tile_size"][1] != 128:
        call.fail("tiles rows only: column_size 128, start_column 0")
    _scale_tile(call, "stationary_scale", stationary, m)
    _scale_tile(call, "moving_scale", moving, n)


@opcode(
    "tensor",
    reads="stationary moving stationary_scale moving_scale",
    since="trn3",
    limits=[
        in_sbuf("stationary", "moving", "stationary_scale", "moving_scale"),
        in_region(MemoryRegion.psum, "dst"),
        dtype_in("stationary", *PACKED),
        dtype_in("moving", *PACKED),
        dtype_in("stationary_scale", *_SCALES),
        dtype_in("moving_scale", *_SCALES),
        dtype_in("dst", "float32", "bfloat16"),
        same_partitions("stationary", "moving"),
        tile_of_array,
        _mx_shapes,
    ],
    indirect="dst stationary stationary_scale moving moving_scale",
)
def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> None:
    """``dst (PSUM) = stationary.T @ moving`` of dequantised MXFP8 or MXFP4 tiles; contracts over partitions and the 4 packed values."""


@nc_matmul_mx.semantics
def _(i: Instruction, bind: Binder) -> Step:
    (dst,) = i.accesses("dst")
    a, m = _dequantised(i, bind, "stationary")
    b, n = _dequantised(i, bind, "moving")
    return accumulating(i, bind, dst, (m, n), lambda: a().t().mm(b()))


def _dequantised(i: Instruction, bind: Binder, name: str) -> tuple[Any, int]:
    """Loads float32 ``[P * 4, F]``."""
    data, scale = i.accesses(name, f"{name}_scale")
    p, f, kind = data.partitions, data.free_size, data.dtype
    load, scales, rows = bind.raw(data, (p, f)), bind.raw(scale, (scale.partitions, f)), scale_rows(p)

    def values() -> torch.Tensor:
        codes = scales().contiguous().view(torch.uint8)[rows]
        factors = torch.exp2(codes.double() - 127).float().repeat_interleave(8, 0)
        factors = torch.where((codes == 255).repeat_interleave(8, 0), torch.nan, factors)
        return (unpack(load(), kind) * factors[:, :, None]).permute(0, 2, 1).reshape(p * 4, f)

    return values, f
