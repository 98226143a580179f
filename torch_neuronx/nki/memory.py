"""Buffers, and the patterns in which instructions walk over them."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch_neuronx.nki.dtypes import DType

if TYPE_CHECKING:
    from torch_neuronx.nki.instruction import Register


class MemoryRegion(enum.Enum):
    """Where a tensor lives. The values are the names that kernels print."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    register = "register"

    def __init__(self, name: str) -> None:
        self.on_chip = name in ("sbuf", "psum")
        self.is_hbm = name.endswith("_hbm")

    def __str__(self) -> str:
        return self.value


@dataclass(eq=False)
class Buffer:
    """One allocation. ``size`` elements in row-major order; on chip, dim 0 walks the partitions and ``free`` elements lie in each."""

    id: int
    name: str
    region: MemoryRegion
    shape: tuple[int, ...]
    dtype: DType
    role: str = "scratch"  # input, output, scratch, constant
    address: tuple[int, int] | None = None  # start partition, byte in the partition
    core: int = 0
    partition_dim: int = 0  # beta-1 tensors may have block dimensions before the partition's
    is_aliased: bool = False  # another buffer lies at overlapping addresses
    constant: Any = None  # a PyTorch tensor of the storage dtype, for role "constant"
    input_index: int = -1
    nesting: tuple[int, ...] = ()  # indices of the device loops in whose body it was made
    needs_fill: bool = False  # may be read where it was not written: fresh memory shows NaN (or 4) there

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def partitions(self) -> int:
        return self.shape[self.partition_dim] if self.region.on_chip else 1

    @cached_property
    def free(self) -> int:
        """Elements in one partition."""
        return self.size // self.partitions

    @cached_property
    def free_bytes(self) -> int:
        return self.free * self.dtype.bytes

    @property
    def storage_key(self) -> object:
        """Equal for buffers that may share memory by their addresses."""
        return (self.region, self.core) if self.address is not None else self

    def __repr__(self) -> str:
        where = f"@{self.address[0]},{self.address[1]}" if self.address else ""
        return f"{self.name}:{self.region.value}{list(self.shape)}{self.dtype}{where}"


@dataclass(frozen=True, eq=False)
class DynamicOffset:
    """An address that is known when the instruction runs.

    ``kind`` "scalar": ``value`` (a register, or a one-element access) times ``scale`` elements is added to the offset.
    ``kind`` "vector": row ``p`` of the pattern starts at ``value[p] * scale`` instead of ``p * stride``.
    ``kind`` "indirect": the free positions are ``value``, in a snake of ``group`` partitions.
    """

    kind: str
    value: AccessPattern | Register
    scale: int = 1
    group: int = 0
    limit: int = 0  # rows (or elements) that the offset may reach; for the bounds check


@dataclass(frozen=True, eq=False)
class AccessPattern:
    """The elements ``offset + sum(stride * i)`` of a buffer, in elements of ``dtype``; see docs/dev/nki.md."""

    buffer: Buffer
    dtype: DType
    offset: int
    pattern: tuple[tuple[int, int], ...]
    dynamic: DynamicOffset | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(count for _, count in self.pattern)

    @property
    def size(self) -> int:
        return math.prod(count for _, count in self.pattern)

    @property
    def region(self) -> MemoryRegion:
        return self.buffer.region

    @property
    def itemsize(self) -> int:
        return self.dtype.bytes

    @property
    def buffer_free(self) -> int:
        """Elements of ``dtype`` in a partition of the buffer."""
        return self.buffer.free_bytes // self.itemsize

    @property
    def partitions(self) -> int:
        return self.pattern[0][1] if self.pattern else 1

    @property
    def start_partition(self) -> int:
        """The physical partition for buffers with an address, else the one within the buffer."""
        start = self.offset // max(self.buffer_free, 1) if self.region.on_chip else 0
        return start + (self.buffer.address[0] if self.buffer.address else 0)

    @property
    def free_size(self) -> int:
        return self.size // max(self.partitions, 1)

    @property
    def free_bytes(self) -> int:
        return self.free_size * self.itemsize

    @property
    def free_pattern(self) -> tuple[tuple[int, int], ...]:
        """The pairs after the partition's, outermost first, merged where two walk like one, without counts of 1."""
        return merge(self.pattern[1:] if self.region.on_chip else self.pattern)

    @property
    def is_dynamic(self) -> bool:
        return self.dynamic is not None

    @property
    def contiguous_run(self) -> int:
        """Bytes of the longest run without a gap that the pattern walks: what one element of a DMA descriptor moves."""
        inner = self.free_pattern[-1:] or ((1, 1),)
        stride, count = inner[0]
        return (count if stride == 1 else 1) * self.itemsize

    @property
    def covers_buffer(self) -> bool:
        """True when every element of the buffer is touched."""
        if self.dynamic is not None or self.size * self.itemsize != self.buffer.size * self.buffer.dtype.bytes:
            return False
        return all(stride for stride, count in self.pattern if count > 1)

    def span(self) -> tuple[int, int]:
        """First and last element that a static pattern touches."""
        last = self.offset + sum(stride * (count - 1) for stride, count in self.pattern if stride > 0)
        first = self.offset + sum(stride * (count - 1) for stride, count in self.pattern if stride < 0)
        return first, last

    def free_span(self) -> tuple[int, int]:
        """First and last element within a partition, for on-chip buffers."""
        base = self.offset % max(self.buffer_free, 1)
        last = base + sum(stride * (count - 1) for stride, count in self.pattern[1:] if stride > 0)
        first = base + sum(stride * (count - 1) for stride, count in self.pattern[1:] if stride < 0)
        return first, last

    def ascending(self) -> tuple[AccessPattern, tuple[int, ...]]:
        """The pattern with the dimensions that it walks backwards turned round, and which these are."""
        turned = tuple(dim for dim, (stride, _) in enumerate(self.pattern) if stride < 0)
        if not turned:
            return self, ()
        offset = self.offset + sum(stride * (count - 1) for stride, count in self.pattern if stride < 0)
        return replace(self, offset=offset, pattern=tuple((abs(stride), count) for stride, count in self.pattern)), turned

    def byte_range(self) -> tuple[int, int]:
        """``(start, stop)`` bytes: within the partition (and by address, if there is one) on chip, within the buffer in HBM."""
        if self.dynamic is not None:
            return (0, self.buffer.free_bytes if self.region.on_chip else self.buffer.size * self.buffer.dtype.bytes)
        first, last = self.free_span() if self.region.on_chip else self.span()
        base = self.buffer.address[1] if self.buffer.address else 0
        return base + first * self.itemsize, base + (last + 1) * self.itemsize

    def overlaps(self, other: AccessPattern) -> bool:
        """False only when the two surely touch no common byte."""
        mine, theirs = self.buffer, other.buffer
        if mine is not theirs and (mine.storage_key != theirs.storage_key or mine.address is None):
            return False
        if mine.region.on_chip:
            if self.start_partition >= other.start_partition + other.partitions:
                return False
            if other.start_partition >= self.start_partition + self.partitions:
                return False
        (a, b), (c, d) = self.byte_range(), other.byte_range()
        if b <= c or d <= a:
            return False
        return not (mine is theirs and _disjoint_grids(self, other))

    def split(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """Strides of the same walk in ``shape`` (same number of elements), or None when the pattern cannot be walked like that."""
        strides: list[int] = []
        pairs = list(self.pattern)
        stride, left = 0, 1
        for count in reversed(shape):
            if count == 1:
                strides.append(0)
                continue
            if left == 1:
                while pairs and left == 1:
                    stride, left = pairs.pop()
            while left < count and pairs:  # merge outwards where the two walk like one
                outer_stride, outer_count = pairs[-1]
                if outer_count != 1 and outer_stride != stride * left:
                    return None
                pairs.pop()
                left *= outer_count
            if left % count:
                return None
            strides.append(stride)
            stride, left = stride * count, left // count
        return tuple(reversed(strides))

    def __repr__(self) -> str:
        dynamic = f" {self.dynamic.kind}" if self.dynamic else ""
        return f"{self.buffer.name}[{self.offset}; {', '.join(f'{s}x{c}' for s, c in self.pattern)}]{dynamic}"


def merge(pattern: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Drops counts of 1 and joins neighbours that walk like one."""
    merged: list[tuple[int, int]] = []
    for stride, count in pattern:
        if count == 1:
            continue
        if merged and merged[-1][0] == stride * count:
            merged[-1] = (stride, merged[-1][1] * count)
        else:
            merged.append((stride, count))
    return tuple(merged)


def common_shape(patterns: Sequence[AccessPattern]) -> tuple[int, ...] | None:
    """The coarsest shape in which all the patterns (of one size) can be walked together, or None."""
    shape: list[int] = []
    rests = [list(p.shape) for p in patterns]
    while True:
        for rest in rests:
            while rest and rest[-1] == 1:
                rest.pop()
        if not any(rests):
            break
        if not all(rests):
            return None
        step = min(rest[-1] for rest in rests)
        if any(rest[-1] % step for rest in rests):
            return None
        for rest in rests:
            rest[-1] //= step
        shape.append(step)
    return tuple(reversed(shape)) or (1,)


def _disjoint_grids(a: AccessPattern, b: AccessPattern) -> bool:
    """True for two rectangles of one row-major buffer that are apart in some dimension of their common strides."""
    if a.dynamic or b.dynamic or a.dtype.bytes != b.dtype.bytes:
        return False
    strides = sorted({abs(s) for s, c in a.pattern + b.pattern if c > 1 and s} | {1}, reverse=True)
    ranges = []
    for access in (a, b):
        rest, box = access.offset, {}
        for stride in strides:
            start, rest = divmod(rest, stride)
            box[stride] = [start, start]
        for stride, count in access.pattern:
            if count > 1 and stride:
                box[abs(stride)][1] += count - 1
        # A walk that leaves its own stride's digit makes digits incomparable.
        for outer, inner in itertools.pairwise(strides):
            if outer % inner or box[inner][1] >= outer // inner:
                return False
        ranges.append(box)
    return any(ranges[0][s][1] < ranges[1][s][0] or ranges[1][s][1] < ranges[0][s][0] for s in strides)
