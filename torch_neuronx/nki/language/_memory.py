"""Memory regions, tile sizes, creation of tensors, loads and stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_neuronx.nki import dtypes, isa, trace
from torch_neuronx.nki import target as targets
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.memory import MemoryRegion
from torch_neuronx.nki.tensor import NkiTensor

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm


def is_hbm(buffer: MemoryRegion) -> bool:
    """Any HBM region?"""
    return buffer.is_hbm


def is_sbuf(buffer: MemoryRegion) -> bool:
    """SBUF?"""
    return buffer is MemoryRegion.sbuf


def is_psum(buffer: MemoryRegion) -> bool:
    """PSUM?"""
    return buffer is MemoryRegion.psum


def is_on_chip(buffer: MemoryRegion) -> bool:
    """SBUF or PSUM?"""
    return buffer.on_chip


def _target() -> targets.Target:
    tracer = trace.active()
    return tracer.target if tracer is not None else targets.current_target()


class _TileSize:
    """Sizes that tiles may have on the target, as Python ints."""

    pmax = targets.PARTITIONS
    psum_bank_fmax = psum_fmax = targets.PSUM_BANK_BYTES // 4
    psum_bank_fmax_bytes = targets.PSUM_BANK_BYTES
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_num_banks(self) -> int:
        import os

        reserved = os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "").lower() in ("1", "true") and _target().generation >= 3
        return targets.PSUM_BANKS - reserved

    @property
    def sbuf_size_bytes(self) -> int:
        return _target().sbuf_bytes * targets.PARTITIONS

    @property
    def sbuf_fmax_bytes(self) -> int:
        return _target().sbuf_usable_bytes

    @property
    def sbuf_fmax(self) -> int:
        return _target().sbuf_usable_bytes // 4

    @property
    def total_available_sbuf_size(self) -> int:
        return _target().sbuf_usable_bytes


tile_size = _TileSize()


def _checked_shape(shape: Any, buffer: Any) -> tuple[int, ...]:
    where = trace.where()
    if not isinstance(buffer, MemoryRegion):
        raise TypeError(f"{where}buffer must be nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm, got {buffer!r}")
    if not isinstance(shape, (tuple, list)) or not shape or any(isinstance(n, float) or int(n) < 1 for n in shape):
        raise NkiValidationError(f"{where}shape must be a tuple of positive integers, got {shape!r}")
    if buffer.on_chip and len(shape) < 2:
        raise NkiValidationError(f"{where}SBUF and PSUM tensors must have at least 2 dimensions, got shape {tuple(shape)}")
    return tuple(int(n) for n in shape)


def ndarray(
    shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "", address: tuple[int, int] | None = None
) -> NkiTensor:
    """A new tensor, not initialised. ``address`` is (start partition, byte in the partition), for SBUF and PSUM."""
    tracer = trace.current("nl.ndarray")
    shape = _checked_shape(shape, buffer)
    if address is not None:
        if not buffer.on_chip:
            raise NkiValidationError(f"{trace.where()}address goes with nl.sbuf and nl.psum only")
        address = (int(address[0]), int(address[1]))
    return NkiTensor.whole(tracer.allocate(shape, dtype, buffer, name, address))


def full(shape: Sequence[int], fill_value: Any, dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor filled with a number."""
    out = ndarray(shape, dtype, buffer, name)
    value = float(fill_value) if dtypes.dtype(dtype).is_float else int(fill_value)
    if buffer.on_chip:
        isa.memset(out, value)
        return out
    one = ndarray((1, 1), dtype)
    isa.memset(one, value)
    source = NkiTensor(one.storage, (1, out.size), (1, 0))
    isa.dma_copy(NkiTensor(out.storage, (1, out.size), (out.size, 1)), source)
    return out


def zeros(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    """Zeros in the shape of x; in SBUF unless ``buffer`` says otherwise."""
    return full(x.shape, 0, dtype or x.dtype, buffer or MemoryRegion.sbuf, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    """A new tensor with the shape, dtype and region of x, not initialised."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def rand(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """Uniform in [0, 1)."""
    out = ndarray(shape, dtype, buffer, name)
    if _target().generation >= 4:
        isa.rand2(out, 0.0, 1.0)
        return out
    bits = ndarray(shape, "uint16")
    isa.rng(bits)
    from torch_neuronx.nki.language._ops import multiply

    isa.tensor_scalar(out, bits, multiply, 2.0**-16)
    return out


def random_seed(seed: NkiTensor) -> None:
    """Seeds the Vector engine's generator with a [1, 1] tensor of a 32-bit dtype."""
    isa.set_rng_seed(seed)


def shared_constant(constant: Any, dtype: Any = None) -> NkiTensor:
    """A tensor in shared HBM that holds a NumPy array, or the array in a .npy file."""
    tracer = trace.current("nl.shared_constant")
    values = np.load(constant) if isinstance(constant, str) else np.asarray(constant)
    return _constant(tracer, values, dtypes.dtype(dtype or values.dtype))


def _constant(tracer: trace.Tracer, values: np.ndarray, kind: dtypes.DType) -> NkiTensor:
    from torch_neuronx.nki.arrays import from_numpy

    buffer = tracer.allocate(values.shape, kind, MemoryRegion.private_hbm, "constant", role="constant")
    tensor, own = from_numpy(np.ascontiguousarray(values))
    if own is not kind:
        from torch_neuronx.nki.numerics import from_float, to_float

        tensor = from_float(to_float(tensor, own), kind)
    buffer.constant = tensor.clone()
    buffer.region = MemoryRegion.private_hbm
    tracer.check.written.pop(buffer, None)
    return NkiTensor.whole(buffer)


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """The identity in SBUF; one tensor per size and dtype in a kernel, unless ``dst`` is given."""
    tracer = trace.current("nl.shared_identity_matrix")
    kind = dtypes.dtype(dtype)
    known = tracer.identities
    if dst is None and (n, kind.name) in known:
        return known[n, kind.name]
    out = dst if dst is not None else ndarray((n, n), kind.name)
    isa.dma_copy(out, _constant(tracer, np.eye(n, dtype=np.float32), dtypes.dtype(out.dtype)))
    if dst is None and not tracer.loops:
        known[n, kind.name] = out
    return out


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new tile in SBUF with what ``src``, a view of HBM, holds."""
    out = ndarray(src.shape if src.ndim > 1 else (src.size, 1), dtype or src.dtype)
    isa.dma_copy(out, src)
    return out


def store(dst: NkiTensor, value: Any) -> None:
    """Writes a tile to HBM."""
    if not isinstance(value, NkiTensor):
        value = full((1, 1), value, dst.dtype)
    if value.buffer is MemoryRegion.psum:
        staged = ndarray(value.shape, value.dtype)
        isa.tensor_copy(staged, value)
        value = staged
    isa.dma_copy(dst, value)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new tile in SBUF with the transpose of ``src``, a 2-D view of HBM."""
    out = ndarray((src.shape[1], src.shape[0]), src.dtype)
    isa.dma_transpose(out, src)
    if dtype is not None and dtypes.dtype(dtype).name != src.dtype:
        cast = ndarray(out.shape, dtype)
        isa.tensor_copy(cast, out)
        return cast
    return out


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """``data[p].flatten()[indices[p]]`` for each partition."""
    out = ndarray(indices.shape, dtype or data.dtype)
    isa.nc_n_gather(out, data, indices)
    return out


def expand_dims(x: NkiTensor, axis: Any) -> NkiTensor:
    """A view with new dimensions of size 1."""
    for one in sorted(axis) if isinstance(axis, (tuple, list)) else [axis]:
        x = x.expand_dim(one)
    return x


def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """x with dimensions of size 1 repeated: a view, or a copy where the partition dimension is repeated or the dtype changes."""
    shape = tuple(int(n) for n in shape)
    if len(shape) != x.ndim or any(have not in (1, want) for have, want in zip(x.shape, shape, strict=True)):
        raise NkiValidationError(f"{trace.where()}broadcast_to: {x.shape} does not broadcast to {shape}")
    view = x
    for dim in range(1, x.ndim):
        if view.shape[dim] != shape[dim]:
            view = view.broadcast(dim, shape[dim])
    if x.buffer.on_chip and x.shape[0] != shape[0]:
        source = view
        if view.buffer is MemoryRegion.psum:
            source = ndarray(view.shape, view.dtype)
            isa.tensor_copy(source, view)
        repeated = NkiTensor(source.storage, shape, (0, *source.strides[1:]), source.offset, source._dtype)
        view = ndarray(shape, dtype or x.dtype)
        isa.dma_copy(view, repeated)
        return view
    if not x.buffer.on_chip and x.shape[0] != shape[0]:
        view = NkiTensor(view.storage, shape, (0, *view.strides[1:]), view.offset, view._dtype)
    if dtype is not None and dtypes.dtype(dtype).name != x.dtype:
        out = ndarray(shape, dtype)
        isa.tensor_copy(out, view)
        return out
    return view


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """x.T between partitions and free dimension, in PSUM."""
    out = ndarray((x.size // x.shape[0], x.shape[0]), dtype or x.dtype, buffer=psum)
    isa.nc_transpose(out, x, engine=isa.engine.tensor)
    return out


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """``x @ y``, or ``x.T @ y`` with ``transpose_x`` (then without a transpose), in PSUM."""
    if not transpose_x:
        turned = ndarray((x.shape[1], x.shape[0]), x.dtype, buffer=psum)
        isa.nc_transpose(turned, x, engine=isa.engine.tensor)
        x = ndarray(turned.shape, x.dtype)
        isa.tensor_copy(x, turned)
    out = ndarray((x.shape[1], math.prod(y.shape[1:])), "float32", buffer=psum)
    isa.nc_matmul(out, x, y)
    return out


def static_cast(value: Any, dtype: Any) -> Any:
    """``value`` as another dtype: a tile is copied, a NumPy array or tensor converted."""
    if isinstance(value, NkiTensor):
        out = ndarray(value.shape, dtype)
        isa.tensor_copy(out, value)
        return out
    kind = dtypes.dtype(dtype)
    return value.to(kind.torch_dtype) if isinstance(value, torch.Tensor) else np.asarray(value).astype(kind.name)
