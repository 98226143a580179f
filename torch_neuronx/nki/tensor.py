"""NkiTensor: the strided views that kernel code handles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch_neuronx.nki import dtypes
from torch_neuronx.nki.dtypes import DType
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.instruction import Register
from torch_neuronx.nki.memory import AccessPattern, Buffer, DynamicOffset, MemoryRegion

MAX_DIMS = 5


class DynamicSlice:
    """``nl.ds(start, size)``: ``size`` elements from ``start``, which may be a register or a one-element tile."""

    def __init__(self, start: Any, size: int) -> None:
        self.start, self.size = start, size


def is_dynamic_index(value: Any) -> bool:
    return isinstance(value, (Register, NkiTensor))


class NkiTensor:
    """A view of a :class:`Buffer`: element ``i`` lies at ``offset + sum(strides[k] * i[k])``, in elements of ``dtype``.

    On chip, dim 0 is the partition dimension: an index there keeps it, and views have at least two dimensions.
    """

    def __init__(
        self,
        storage: Buffer,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int = 0,
        dtype: DType | None = None,
        dynamic: DynamicOffset | None = None,
    ) -> None:
        self.storage = storage
        self.shape = tuple(int(n) for n in shape)
        self.strides = tuple(int(n) for n in strides)
        self.offset = int(offset)
        self._dtype = dtype or storage.dtype
        self._dynamic = dynamic

    @classmethod
    def whole(cls, storage: Buffer) -> NkiTensor:
        return cls(storage, storage.shape, row_major(storage.shape))

    # What kernels read.

    @property
    def dtype(self) -> str:
        return self._dtype.name

    @property
    def buffer(self) -> MemoryRegion:
        return self.storage.region

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self._dtype.bytes

    @property
    def address(self) -> tuple[int, int] | None:
        return self.storage.address

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return True  # kernels ask `if bias:` for "was it given"

    def __repr__(self) -> str:
        return f"NkiTensor({self.name}, shape={self.shape}, dtype={self.dtype}, buffer={self.buffer})"

    def is_contiguous(self) -> bool:
        """Row-major and dense; on chip the partition dimension does not matter."""
        first = 1 if self.buffer.on_chip else 0
        shape, strides = self.shape[first:], self.strides[first:]
        return all(n == 1 or s == want for n, s, want in zip(shape, strides, row_major(shape), strict=True))

    def is_indirect(self) -> bool:
        """True when the address depends on data."""
        return self._dynamic is not None

    def get_pattern(self) -> list[list[int]]:
        """``[[stride, count], ...]`` in the order of ``shape``."""
        return [[stride, count] for stride, count in zip(self.strides, self.shape, strict=True)]

    def access(self) -> AccessPattern:
        """Where the view lies, for an instruction."""
        return AccessPattern(self.storage, self._dtype, self.offset, tuple(zip(self.strides, self.shape, strict=True)), self._dynamic)

    # Views.

    def _view(self, shape: Sequence[int], strides: Sequence[int], offset: int, **changes: Any) -> NkiTensor:
        arguments = {"dtype": self._dtype, "dynamic": self._dynamic, **changes}
        return type(self)(self.storage, shape, strides, offset, **arguments)

    def _refuse(self, text: str) -> NkiValidationError:
        from torch_neuronx.nki.trace import where

        return NkiValidationError(f"{where()}{text}")

    def __getitem__(self, key: Any) -> NkiTensor:
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(k is Ellipsis for k in keys):
            at = next(i for i, k in enumerate(keys) if k is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        if len(keys) > self.ndim:
            raise self._refuse(f"too many indices for {self.name}: {len(keys)} for {self.ndim} dimensions")
        keys += [slice(None)] * (self.ndim - len(keys))
        shape: list[int] = []
        strides: list[int] = []
        dropped: list[bool] = []
        offset, dynamic = self.offset, self._dynamic
        for dim, (k, count, stride) in enumerate(zip(keys, self.shape, self.strides, strict=True)):
            start, size, step, drops = self._interpret(k, dim, count)
            if is_dynamic_index(start):
                if dynamic is not None:
                    raise self._refuse(f"{self.name}: one dynamic index per view; this view is dynamic already")
                dynamic = self._scalar_offset(start, stride, dim, count)
                start = 0
            offset += int(start) * stride
            shape.append(size)
            strides.append(stride * step)
            dropped.append(drops and not (dim == 0 and self.buffer.on_chip))
        least = 2 if self.buffer.on_chip else 1
        keep = [i for i, drop in enumerate(dropped) if not drop]
        for i in range(len(dropped) - 1, -1, -1):  # too few dimensions: the last dropped ones stay, with size 1
            if len(keep) >= least:
                break
            if dropped[i]:
                keep = sorted([*keep, i])
        return self._view([shape[i] for i in keep], [strides[i] for i in keep], offset, dynamic=dynamic)

    def _interpret(self, key: Any, dim: int, count: int) -> tuple[Any, int, int, bool]:
        """``(start, size, step, drops the dimension)`` of one index."""
        if isinstance(key, DynamicSlice):
            if is_dynamic_index(key.start):
                return key.start, int(key.size), 1, False
            self._bounds(dim, int(key.start), int(key.start) + int(key.size) - 1, count)
            return int(key.start), int(key.size), 1, False
        if isinstance(key, slice):
            step = 1 if key.step is None else int(key.step)
            if step < 1:
                raise self._refuse(f"{self.name}: a slice needs a positive step, got {step}")
            start = 0 if key.start is None else int(key.start)
            stop = count if key.stop is None else int(key.stop)
            start, stop = start + count * (start < 0), stop + count * (stop < 0)
            if stop <= start:
                raise self._refuse(f"{self.name}: empty slice [{key.start}:{key.stop}] on dimension {dim} of size {count}")
            size = (stop - start + step - 1) // step
            self._bounds(dim, start, start + (size - 1) * step, count)
            return start, size, step, False
        if is_dynamic_index(key):
            return key, 1, 1, True
        try:
            index = key.__index__()
        except AttributeError:
            raise TypeError(f"{self.name}: cannot index with {type(key).__name__}; use int, slice, Ellipsis or nl.ds") from None
        index += count * (index < 0)
        self._bounds(dim, index, index, count)
        return index, 1, 1, True

    def _bounds(self, dim: int, first: int, last: int, count: int) -> None:
        if first < 0 or last >= count:
            raise self._refuse(
                f"Out-of-bound access for tensor {self.name} on dimension {dim}: "
                f"index range [{first},{last}] exceed dimension size of {count}"
            )

    def _scalar_offset(self, value: Any, scale: int, dim: int, limit: int) -> DynamicOffset:
        if isinstance(value, NkiTensor):
            if value.size != 1:
                raise self._refuse(f"{self.name}: a dynamic index has one element, got shape {value.shape}")
            return DynamicOffset("scalar", value.access(), scale, limit=limit)
        return DynamicOffset("scalar", value, scale, limit=limit)

    def _dim(self, dim: int, *, partition_ok: bool, what: str) -> int:
        actual = dim + self.ndim * (dim < 0)
        if not 0 <= actual < self.ndim:
            raise self._refuse(f"{what}: dimension {dim} of a {self.ndim}-dimensional tensor")
        if actual == 0 and self.buffer.on_chip and not partition_ok:
            raise self._refuse(f"{what}: not on the partition dimension (dim 0) of {self.name} in {self.buffer}")
        return actual

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """``start <= i < end`` by ``step`` along ``dim``."""
        dim = self._dim(dim, partition_ok=True, what="slice")
        if not 0 <= start < end <= self.shape[dim] or step < 1:
            raise self._refuse(f"slice: need 0 <= start < end <= {self.shape[dim]} and step >= 1, got {start}, {end}, {step}")
        return self[(slice(None),) * dim + (slice(start, end, step),)]

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One position along ``dim``, which goes away; a register or one-element tile makes the view dynamic."""
        dim = self._dim(dim, partition_ok=not is_dynamic_index(index), what="select")
        return self[(slice(None),) * dim + (index,)]

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Rows ``vector_offset[p, 0]`` of an HBM tensor, one per partition of the on-chip side."""
        if self.buffer.on_chip or dim != 0:
            raise self._refuse("vector_select: only dim 0 of a tensor in HBM")
        dynamic = self._vector_offset(vector_offset, self.strides[0], self.shape[0])
        return self._view((vector_offset.shape[0], *self.shape[1:]), self.strides, self.offset, dynamic=dynamic)

    def _vector_offset(self, vector: NkiTensor, scale: int, limit: int) -> DynamicOffset:
        if self._dynamic is not None:
            raise self._refuse(f"{self.name}: the view is indirect already and cannot be indirected again")
        if vector.buffer is not MemoryRegion.sbuf or not vector._dtype.is_integer:
            raise self._refuse(f"vector_offset must be an integer tile in SBUF, got {vector.dtype} in {vector.buffer}")
        return DynamicOffset("vector", vector.access(), scale, limit=limit)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """The dimensions in another order; on chip dim 0 stays first."""
        if sorted(dims) != list(range(self.ndim)):
            raise self._refuse(f"permute: {tuple(dims)} is no permutation of {self.ndim} dimensions")
        if self.buffer.on_chip and dims[0] != 0:
            raise self._refuse("permute: the partition dimension stays first on chip")
        return self._view([self.shape[d] for d in dims], [self.strides[d] for d in dims], self.offset)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Repeats a dimension of size 1, with stride 0."""
        dim = self._dim(dim, partition_ok=False, what="broadcast")
        if self.shape[dim] != 1:
            raise self._refuse(f"broadcast: dimension {dim} has size {self.shape[dim]}, not 1")
        return self._view(_replaced(self.shape, dim, size), _replaced(self.strides, dim, 0), self.offset)

    def expand_dim(self, dim: int) -> NkiTensor:
        """A new dimension of size 1 before ``dim``."""
        dim = dim + (self.ndim + 1) * (dim < 0)
        if dim == 0 and self.buffer.on_chip:
            raise self._refuse("expand_dim: not before the partition dimension")
        return self._view((*self.shape[:dim], 1, *self.shape[dim:]), (*self.strides[:dim], 0, *self.strides[dim:]), self.offset)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without a dimension of size 1."""
        dim = self._dim(dim, partition_ok=False, what="squeeze_dim")
        if self.shape[dim] != 1:
            raise self._refuse(f"squeeze_dim: dimension {dim} has size {self.shape[dim]}, not 1")
        return self._view(self.shape[:dim] + self.shape[dim + 1 :], self.strides[:dim] + self.strides[dim + 1 :], self.offset)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """Splits one dimension; one entry of ``shape`` may be -1."""
        dim = self._dim(dim, partition_ok=True, what="reshape_dim")
        parts = _fill_in(shape, self.shape[dim])
        if parts is None:
            raise self._refuse(f"reshape_dim: {tuple(shape)} does not divide dimension {dim} of size {self.shape[dim]}")
        if dim == 0 and self.buffer.on_chip and parts[0] != self.shape[0]:
            raise self._refuse("reshape_dim: the partition dimension cannot be split")
        strides = [stride * self.strides[dim] for stride in row_major(parts)]
        return self._view(
            (*self.shape[:dim], *parts, *self.shape[dim + 1 :]), (*self.strides[:dim], *strides, *self.strides[dim + 1 :]), self.offset
        )

    def flatten_dims(self, start: int, end: int) -> NkiTensor:
        """Joins the dimensions ``start`` to ``end`` (inclusive), which must lie densely."""
        start, end = self._dim(start, partition_ok=False, what="flatten_dims"), self._dim(end, partition_ok=False, what="flatten_dims")
        joined = math.prod(self.shape[start : end + 1])
        return self.reshape((*self.shape[:start], joined, *self.shape[end + 1 :]))

    def reshape(self, *shape: Any) -> NkiTensor:
        """The same elements in another shape, as a view; on chip ``shape[0]`` stays."""
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        filled = _fill_in(wanted, self.size)
        if filled is None:
            raise self._refuse(f"reshape: {self.shape} has {self.size} elements, {tuple(wanted)} has not")
        if self.buffer.on_chip and (len(filled) < 2 or filled[0] != self.shape[0]):
            raise self._refuse(f"reshape: {self.shape} in {self.buffer} keeps its partition dimension and two dimensions, got {filled}")
        strides = self.access().split(filled)
        if strides is None:
            raise self._refuse(f"reshape: a view with strides {self.strides} of shape {self.shape} cannot have the shape {filled}")
        return self._view(filled, strides, self.offset)

    def rearrange(self, source: Sequence[Any], result: Sequence[Any], fixed_sizes: dict[str, int] | None = None) -> NkiTensor:
        """Like einops with tuples: ``t.rearrange(('b', ('h', 'w')), ('b', 'w', 'h'), {'h': 4})``."""
        sizes = dict(fixed_sizes or {})
        view = self
        names: list[str] = []
        for entry in source:
            parts = [entry] if isinstance(entry, str) else list(entry)
            dim = len(names)
            if len(parts) > 1:
                view = view.reshape_dim(dim, [sizes.get(part, -1) for part in parts])
            for k, part in enumerate(parts):
                if sizes.setdefault(part, view.shape[dim + k]) != view.shape[dim + k]:
                    raise self._refuse(f"rearrange: {part} is {view.shape[dim + k]}, not {sizes[part]}")
            names += parts
        wanted = [part for entry in result for part in ([entry] if isinstance(entry, str) else entry)]
        if sorted(wanted) != sorted(names) or len(names) != view.ndim:
            raise self._refuse(f"rearrange: {tuple(source)} -> {tuple(result)} does not fit shape {self.shape}")
        view = view.permute([names.index(part) for part in wanted])
        for dim, entry in enumerate(result):
            if not isinstance(entry, str) and len(entry) > 1:
                view = view.reshape((*view.shape[:dim], math.prod(sizes[p] for p in entry), *view.shape[dim + len(entry) :]))
        return view

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as another dtype; the last dimension is dense and its size changes with the ratio of the sizes."""
        new = dtypes.dtype(dtype)
        if new.bytes == self._dtype.bytes:
            return self._view(self.shape, self.strides, self.offset, dtype=new)
        if self._dynamic is not None:
            raise self._refuse("view: the size of elements cannot change after a dynamic or vector select")
        scaled = _rescale(self.get_pattern(), self.offset, self._dtype.bytes, new.bytes)
        if scaled is None:
            raise self._refuse(f"view: {self.shape} {self.dtype} with strides {self.strides} at {self.offset} is no {new} tensor")
        pattern, offset = scaled
        return self._view([count for _, count in pattern], [stride for stride, _ in pattern], offset, dtype=new)

    reinterpret_cast = view

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """Any pattern ``[[stride, count], ...]`` over the storage; shape and strides of this view do not matter, its offset is added.

        ``scalar_offset`` (register or one-element tile) counts in rows of ``indirect_dim`` of this view's shape, ``vector_offset`` (one
        row index per partition) in rows of dim 0.
        """
        new = self._dtype if dtype is None else dtypes.dtype(dtype)
        base = self.offset * self._dtype.bytes
        if base % new.bytes:
            raise self._refuse(f"ap: offset {self.offset} of {self.dtype} is not a multiple of the size of {new}")
        start = base // new.bytes + int(offset or 0)
        pairs = [(int(stride), int(count)) for stride, count in pattern]
        if any(count < 1 for _, count in pairs):
            raise self._refuse(f"ap: counts must be positive, got {pairs}")
        if self.buffer.on_chip:
            free = self.storage.free_bytes // new.bytes
            if pairs[0][1] > 1 and pairs[0][0] != free:
                raise self._refuse(f"ap: the first stride of an on-chip pattern is the free size {free} of {self.name}, got {pairs[0][0]}")
        dynamic = None
        rows = math.prod(self.shape[indirect_dim + 1 :]) * self._dtype.bytes // new.bytes
        if scalar_offset is not None and vector_offset is not None:
            raise self._refuse("ap: scalar_offset and vector_offset exclude each other")
        if (scalar_offset is not None or vector_offset is not None) and self._dynamic is not None:
            raise self._refuse("ap: the view is indirect already and cannot be indirected again")
        if scalar_offset is not None:
            dynamic = self._scalar_offset(scalar_offset, rows, indirect_dim, self.shape[indirect_dim])
        if vector_offset is not None:
            if self.buffer.on_chip or indirect_dim != 0:
                raise self._refuse("ap: vector_offset needs a tensor in HBM and indirect_dim 0")
            dynamic = self._vector_offset(vector_offset, rows, self.shape[0])
        return self._view([c for _, c in pairs], [s for s, _ in pairs], start, dtype=new, dynamic=dynamic)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Columns ``index`` of the free dimensions, the same for all partitions (trn3).

        Column ``i`` of the result (of ``num_elem``) is ``index[i % G, i // G]``, with ``G`` 32 for the Tensor engine, else 16.
        """
        from torch_neuronx.nki.trace import current

        if self._dynamic is not None:
            raise self._refuse("indirect: the view is indirect already and cannot be indirected again")
        if not self.buffer.on_chip or index.buffer is not MemoryRegion.sbuf or not index._dtype.is_integer:
            raise self._refuse("indirect: an on-chip tensor, and an integer index in SBUF")
        if index.shape[0] != self.shape[0]:
            raise self._refuse(f"indirect: index has {index.shape[0]} partitions, the tensor {self.shape[0]}")
        target = current("NkiTensor.indirect").target
        if target.generation < 4:
            raise self._refuse(f"indirect: needs trn3; this kernel is traced for {target.name}. Use nisa.local_gather or nisa.nc_n_gather")
        free = self.storage.free_bytes // self._dtype.bytes
        count = index.size if num_elem is None else int(num_elem)
        dynamic = DynamicOffset("indirect", index.access(), 1, group=16, limit=free - self.offset % free)
        return self._view((self.shape[0], count), (self.strides[0], 1), self.offset, dynamic=dynamic)

    def __setitem__(self, key: Any, value: Any) -> None:
        from torch_neuronx.nki import isa

        target = self[key]
        if not isinstance(value, NkiTensor):
            isa.memset(target, value)
        elif target.buffer.on_chip and value.buffer.on_chip:
            isa.tensor_copy(target, value)
        else:
            isa.dma_copy(target, value)


# Python's operators. The tiles of beta 1 (a subclass) have them.

_COMPARISONS = {"lt": ("<", "less"), "le": ("<=", "less_equal"), "gt": (">", "greater"), "ge": (">=", "greater_equal")}
_OPERATORS = {
    "add": ("+", "add"),
    "sub": ("-", "subtract"),
    "mul": ("*", "multiply"),
    "truediv": ("/", "divide"),
    "pow": ("**", "power"),
    "mod": ("%", "mod"),
    "and": ("&", "bitwise_and"),
    "or": ("|", "bitwise_or"),
    "xor": ("^", "bitwise_xor"),
    "lshift": ("<<", "left_shift"),
    "rshift": (">>", "right_shift"),
}
_UNKNOWN = (
    "what a tensor holds is not known while a kernel is traced, so it cannot decide an `if`. Make both results and choose with nl.where "
    "or a predicated instruction, or loop with nl.while_loop"
)


def _refusal(text: str) -> Callable[..., Any]:
    def refuse(self: NkiTensor, *_: Any) -> Any:
        from torch_neuronx.nki.trace import where

        raise TypeError(f"{where()}{self.name}: {text}")

    return refuse


def _refuse_operators() -> None:
    for name, (symbol, function) in _COMPARISONS.items():
        text = f"no Python `{symbol}` on tensors; nl.{function}(x, y) gives a tile of 1 and 0. And {_UNKNOWN}"
        setattr(NkiTensor, f"__{name}__", _refusal(text))
    for name, (symbol, function) in _OPERATORS.items():
        refuse = _refusal(f"no Python `{symbol}` on tensors; use nl.{function}(x, y)")
        setattr(NkiTensor, f"__{name}__", refuse)
        setattr(NkiTensor, f"__r{name}__", refuse)
    for name in ("int", "float"):
        setattr(NkiTensor, f"__{name}__", _refusal(f"no Python {name} can be made of it: {_UNKNOWN}"))


_refuse_operators()


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * int(shape[i + 1])
    return tuple(strides)


def _replaced(values: Sequence[int], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], int(value), *values[at + 1 :])


def _fill_in(shape: Sequence[int], size: int) -> tuple[int, ...] | None:
    """``shape`` with its -1 replaced, or None when it does not have ``size`` elements."""
    known = math.prod(int(n) for n in shape if n != -1)
    if any(n == -1 for n in shape) and known and size % known == 0:
        shape = [size // known if n == -1 else n for n in shape]
    return tuple(int(n) for n in shape) if math.prod(shape) == size else None


def _rescale(pattern: list[list[int]], offset: int, old: int, new: int) -> tuple[list[tuple[int, int]], int] | None:
    """The pattern in elements of ``new`` bytes, or None where that is impossible."""
    if pattern[-1][0] != 1 and pattern[-1][1] != 1:
        return None
    byte_pattern = [(stride * old, count) for stride, count in pattern[:-1]]
    last = pattern[-1][1] * old
    if last % new or offset * old % new or any(stride % new for stride, count in byte_pattern if count > 1):
        return None
    return [*((stride // new, count) for stride, count in byte_pattern), (1, last // new)], offset * old // new
