"""Operands whose address is known when the instruction runs: a start offset, rows of HBM by index, columns on chip by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torch_neuronx.nki import numerics
from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.memory import AccessPattern

if TYPE_CHECKING:
    from torch_neuronx.nki.simulator import Binder


class DynamicAccess:
    """An access whose address is found when it runs."""

    def __init__(self, bind: Binder, access: AccessPattern) -> None:
        assert access.dynamic is not None
        self.access, self.dynamic = access, access.dynamic
        self.bind = bind
        self.flat = bind.flat(access)
        self.load, self.store = {
            "scalar": (self._load_scalar, self._store_scalar),
            "vector": (self._load_rows, self._store_rows),
            "indirect": (self._load_columns, self._store_columns),
        }[self.dynamic.kind]
        if self.dynamic.kind == "scalar":
            self.value = bind.number(self.dynamic.value)
        else:
            index = self.dynamic.value
            assert isinstance(index, AccessPattern)
            self.index, self.index_dtype = bind.raw(index), index.dtype

    def _indices(self) -> torch.Tensor:
        return numerics.as_integers(self.index(), self.index_dtype)

    def out_of_bounds(self, text: str) -> NkiValidationError:
        return NkiValidationError(f"Out-of-bound access: {self.access}: {text}")

    # A start address.

    def window(self) -> torch.Tensor:
        access = self.access
        offset = access.offset + self.value() * self.dynamic.scale
        last = offset + sum(s * (c - 1) for s, c in access.pattern)
        total = access.buffer.size * access.buffer.dtype.bytes // access.itemsize
        if offset < 0 or last >= total:
            raise self.out_of_bounds(f"dynamic offset {self.value()} reaches elements [{offset},{last}] of {total}")
        start, strides = self.bind.place(access, offset, [s for s, _ in access.pattern])
        return self.flat.as_strided(access.shape, strides, start)

    def _load_scalar(self) -> torch.Tensor:
        return self.window()

    def _store_scalar(self, x: torch.Tensor) -> None:
        self.window().copy_(x)

    # Rows of HBM.

    def rows(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``(table, row numbers, which are in range)``; the table has one entry per row that fits into the tensor."""
        access = self.access
        free = access.pattern[1:]
        reach = access.offset + sum(s * (c - 1) for s, c in free)
        total = access.buffer.size * access.buffer.dtype.bytes // access.itemsize
        count = max(0, (total - 1 - reach) // self.dynamic.scale + 1)
        table = self.flat.as_strided((count, *(c for _, c in free)), (self.dynamic.scale, *(s for s, _ in free)), access.offset)
        numbers = self._indices().reshape(-1)[: access.partitions]
        return table, numbers, (numbers >= 0) & (numbers < count)

    def _checked_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        table, numbers, valid = self.rows()
        if not bool(valid.all()):
            raise self.out_of_bounds(f"row index {int(numbers[~valid][0])} of {table.shape[0]} rows")
        return table, numbers

    def _load_rows(self) -> torch.Tensor:
        table, numbers = self._checked_rows()
        return table.index_select(0, numbers)

    def _store_rows(self, x: torch.Tensor) -> None:
        table, numbers = self._checked_rows()
        table.index_copy_(0, numbers, x.to(table.dtype))

    # Columns on chip.

    def columns(self) -> tuple[torch.Tensor, torch.Tensor]:
        access, group = self.access, self.dynamic.group
        partitions, count = access.shape
        free = access.buffer_free
        start, strides = self.bind.place(access, access.offset, [s for s, _ in access.pattern])
        table = self.flat.as_strided((partitions, free - access.offset % free), (strides[0], 1), start)
        index = self._indices().reshape(partitions, -1)
        wanted = torch.cat([part.T.reshape(1, -1)[:, :count].expand(len(part), -1) for part in index.split(group)])
        if wanted.shape[1] < count:
            raise self.out_of_bounds(f"{count} columns asked for, the index has {wanted.shape[1]}")
        if bool(((wanted < 0) | (wanted >= table.shape[1])).any()):
            raise self.out_of_bounds(f"column index outside {table.shape[1]} elements")
        return table, wanted

    def _load_columns(self) -> torch.Tensor:
        table, wanted = self.columns()
        return table.gather(1, wanted)

    def _store_columns(self, x: torch.Tensor) -> None:
        table, wanted = self.columns()
        table.scatter_(1, wanted, x.to(table.dtype))
