"""Tiles of beta-1 kernels: tensors with operators, advanced indexing, and block dimensions before the partition's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torch_neuronx.nki import isa, ops
from torch_neuronx.nki.beta1.index import Index, Mask, _affine
from torch_neuronx.nki.dtypes import DType
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.memory import Buffer, DynamicOffset, MemoryRegion
from torch_neuronx.nki.tensor import NkiTensor, row_major
from torch_neuronx.nki.trace import current, where


class Tile(NkiTensor):
    """A view with Python operators. ``partition_dim`` says which dimension walks the partitions; dims before it are blocks."""

    def __init__(
        self,
        storage: Buffer,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int = 0,
        dtype: DType | None = None,
        dynamic: DynamicOffset | None = None,
        partition_dim: int = 0,
    ) -> None:
        super().__init__(storage, shape, strides, offset, dtype, dynamic)
        self.partition_dim = partition_dim
        self.left_out = False  # a product whose mask is False: it was not made, and adds nothing

    @classmethod
    def blocks(cls, storage: Buffer, shape: Sequence[int], partition_dim: int) -> Tile:
        """A tensor of ``shape`` over a buffer whose shape has the partition dimension first."""
        order = [partition_dim, *(d for d in range(len(shape)) if d != partition_dim)]
        packed = row_major([shape[d] for d in order])
        strides = [0] * len(shape)
        for stride, d in zip(packed, order, strict=True):
            strides[d] = stride
        return cls(storage, shape, strides, partition_dim=partition_dim)

    def partition_first(self) -> Tile:
        """The same elements with the partition dimension first, as instructions want it."""
        if self.partition_dim == 0 or not self.buffer.on_chip:
            return self
        order = [self.partition_dim, *(d for d in range(self.ndim) if d != self.partition_dim)]
        return Tile(self.storage, [self.shape[d] for d in order], [self.strides[d] for d in order], self.offset, self._dtype, self._dynamic)

    # Indexing.

    def __getitem__(self, key: Any) -> Tile:
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(k is Ellipsis for k in keys):
            at = next(k for k, v in enumerate(keys) if v is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - sum(k is not None for k in keys) + 1)
        keys += [slice(None)] * (self.ndim - sum(k is not None for k in keys))
        if any(isinstance(k, (Index, np.ndarray)) and getattr(k, "ndim", 0) for k in keys) or any(_is_index_tile(k) for k in keys):
            return self._advanced(keys)
        return self._basic(keys)

    def _basic(self, keys: list[Any]) -> Tile:
        shape: list[int] = []
        strides: list[int] = []
        partition, dim, offset, dynamic = -1, 0, self.offset, self._dynamic
        for k in keys:
            if k is None:
                shape.append(1)
                strides.append(0)
                continue
            start, size, step, drops = self._interpret(k, dim, self.shape[dim])
            if isinstance(start, NkiTensor):
                dynamic, start = self._scalar_offset(start, self.strides[dim], dim, self.shape[dim]), 0
            offset += start * self.strides[dim]
            is_partition = self.buffer.on_chip and dim == self.partition_dim
            if not drops or is_partition:
                if is_partition:
                    partition = len(shape)
                shape.append(size)
                strides.append(self.strides[dim] * step)
            dim += 1
        if self.buffer.on_chip and len(shape) < 2:
            shape.append(1)
            strides.append(0)
        if not shape:
            shape, strides = [1], [0]
        return Tile(self.storage, shape, strides, offset, self._dtype, dynamic, max(partition, 0))

    def _advanced(self, keys: list[Any]) -> Tile:
        found: list[Any] = []
        for dim, k in enumerate(keys):
            if isinstance(k, slice):
                if k != slice(None):
                    raise NkiValidationError(f"{where()}cannot mix slices and index arrays in one access of {self.name}")
                k = slice(None)
            found.append(k)
            del dim
        arrays = [_affine(k) for k in found if isinstance(k, (Index, np.ndarray))]
        tiles = [k for k in found if _is_index_tile(k)]
        space = np.broadcast_shapes(*(a.shape for a in arrays), *(t.shape for t in tiles)) if arrays or tiles else ()
        rank = len(space)
        strides = [0] * rank
        offset, dynamic, partition = self.offset, self._dynamic, 0
        tail_shape: list[int] = []
        tail_strides: list[int] = []
        for dim, k in enumerate(found):
            stride = self.strides[dim]
            if isinstance(k, slice):
                tail_shape.append(self.shape[dim])
                tail_strides.append(stride)
                continue
            if _is_index_tile(k):
                dynamic = DynamicOffset("vector", k.partition_first().access(), stride, limit=self.shape[dim])
                continue
            if not isinstance(k, (Index, np.ndarray)):
                start, _, _, _ = self._interpret(k, dim, self.shape[dim])
                if isinstance(start, NkiTensor):
                    dynamic, start = self._scalar_offset(start, stride, dim, self.shape[dim]), 0
                offset += start * stride
                continue
            index = _affine(k)
            offset += index.const * stride
            for axis, coefficient in enumerate(index.aligned(rank)):
                if space[axis] > 1:
                    strides[axis] += coefficient * stride
                    if coefficient and self.buffer.on_chip and dim == self.partition_dim:
                        partition = axis
        return Tile(self.storage, [*space, *tail_shape], [*strides, *tail_strides], offset, self._dtype, dynamic, partition)

    def shrunk(self, bounds: Sequence[tuple[int, int]]) -> Tile:
        """The part of the view inside a mask's rectangle; dimensions of size 1 stay as they are."""
        lead = len(bounds) - self.ndim
        shape, offset = list(self.shape), self.offset
        for dim in range(self.ndim):
            start, stop = bounds[lead + dim] if lead + dim >= 0 else (0, self.shape[dim])
            if self.shape[dim] != 1:
                offset += start * self.strides[dim]
                shape[dim] = min(stop, self.shape[dim]) - start
        return Tile(self.storage, shape, self.strides, offset, self._dtype, self._dynamic, self.partition_dim)

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        if (
            isinstance(value, Tile)
            and value.storage is target.storage
            and value.offset == target.offset
            and value.strides == target.strides
        ):
            return  # `tile[...] += x` has done it
        assign(target, value)

    # Views under their beta-1 names.

    def broadcast_to(self, shape: Any) -> Tile:
        return broadcast(self, tuple(int(n) for n in shape))

    def astype(self, dtype: Any) -> Tile:
        from torch_neuronx.nki.beta1 import language

        return language.copy(self, dtype=dtype)

    def reshape(self, *shape: Any, **named: Any) -> Any:
        shape = (named["shape"],) if "shape" in named else shape
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if not self.buffer.on_chip or self.partition_dim == 0:
            return super().reshape(tuple(int(n) for n in wanted))
        raise NkiValidationError(f"{where()}reshape of a tensor with block dimensions")

    def _binary(self, other: Any, op: str, reverse: bool = False) -> Any:
        from torch_neuronx.nki.beta1 import language

        if isinstance(other, (Index, Mask)):
            return NotImplemented
        return language.binary(op, other, self) if reverse else language.binary(op, self, other)

    def _in_place(self, other: Any, op: str) -> Tile:
        from torch_neuronx.nki.beta1 import language

        if op == "add" and isinstance(other, Tile) and (other.left_out or accumulate_matmul(self, other)):
            return self
        language.binary(op, self, other, out=self)
        return self

    def __neg__(self) -> Any:
        return self._binary(-1.0, "multiply")

    def __iadd__(self, other: Any) -> Any:
        return self._in_place(other, "add")

    def __isub__(self, other: Any) -> Any:
        return self._in_place(other, "subtract")

    def __imul__(self, other: Any) -> Any:
        return self._in_place(other, "multiply")

    def __itruediv__(self, other: Any) -> Any:
        return self._in_place(other, "divide")


def _operator(op: str, reverse: bool) -> Callable[[Tile, Any], Any]:
    return lambda self, other: self._binary(other, op, reverse)


for _symbol, _op in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "pow": "power",
}.items():
    setattr(Tile, f"__{_symbol}__", _operator(_op, False))
    if _symbol not in ("lt", "le", "gt", "ge"):
        setattr(Tile, f"__r{_symbol}__", _operator(_op, True))


def _is_index_tile(key: Any) -> bool:
    return isinstance(key, Tile) and key.size > 1


def new_tile(shape: Sequence[int], dtype: Any, region: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> Tile:
    return Tile.whole(current().allocate(shape, dtype, region, name))  # type: ignore[return-value]


def broadcast(tile: Tile, shape: tuple[int, ...]) -> Tile:
    """A view of ``shape``: missing dimensions go in front, size 1 repeats; repeating partitions takes a copy."""
    tile = tile.partition_first()
    lead = len(shape) - tile.ndim
    if lead:
        tile = Tile(tile.storage, (1,) * lead + tile.shape, (0,) * lead + tile.strides, tile.offset, tile._dtype, tile._dynamic)
    if tile.shape == shape:
        return tile
    if any(have not in (1, want) for have, want in zip(tile.shape, shape, strict=True)):
        raise NkiValidationError(f"{where()}shape {tile.shape} does not broadcast to {shape}")
    strides = [0 if have != want else s for have, want, s in zip(tile.shape, shape, tile.strides, strict=True)]
    view = Tile(tile.storage, shape, strides, tile.offset, tile._dtype, tile._dynamic)
    if not tile.buffer.on_chip or tile.shape[0] == shape[0]:
        return view
    source = view
    if tile.buffer is MemoryRegion.psum:
        staged = new_tile(tile.shape, tile.dtype)
        isa.tensor_copy(staged, tile)
        return broadcast(staged, shape)
    out = new_tile(shape, tile.dtype)
    isa.dma_copy(out, source)
    return out


def assign(target: Tile, value: Any) -> None:
    """``target[...] = value``: a copy with a cast, or a fill."""
    target = target.partition_first()
    if not isinstance(value, NkiTensor):
        if target.buffer.on_chip:
            isa.memset(target, value)
        else:
            one = new_tile((1, 1), target.dtype)
            isa.memset(one, value)
            isa.dma_copy(target, Tile(one.storage, target.shape, (0,) * target.ndim))
        return
    source = value.partition_first() if isinstance(value, Tile) else value
    if source.size != target.size:
        assert isinstance(source, Tile)
        source = broadcast(source, target.shape)
    if target.buffer.on_chip and source.buffer.on_chip:
        isa.tensor_copy(target, source)
    else:
        isa.dma_copy(target, source)


def accumulate_matmul(target: Tile, product: Tile) -> bool:
    """``psum += nc_matmul(...)``: the matmul that made ``product`` writes to ``target`` instead. False when that is not what this is."""
    tracer = current()
    nodes = tracer._open[-1]
    last = nodes[-1] if nodes else None
    if target.buffer is not MemoryRegion.psum or getattr(last, "opcode", None) != "nc_matmul":
        return False
    if last.writes[0].buffer is not product.storage:  # type: ignore[union-attr]
        return False
    nodes.pop()
    attrs = {k: v for k, v in last.attrs.items() if k in ("is_stationary_onezero", "is_moving_onezero", "is_transpose", "perf_mode")}  # type: ignore[union-attr]
    tiles = [_from_access(last.operands[name]) for name in ("stationary", "moving")]  # type: ignore[union-attr]
    isa.nc_matmul(target.partition_first(), *tiles, **attrs, accumulate=None)
    return True


def _from_access(access: Any) -> NkiTensor:
    return NkiTensor(access.buffer, access.shape, [s for s, _ in access.pattern], access.offset, access.dtype, access.dynamic)


def op_name(value: Any) -> str:
    return ops.token(value)
