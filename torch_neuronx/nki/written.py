"""Which elements of a buffer have been written, while a kernel is traced."""

from __future__ import annotations

import numpy as np

from torch_neuronx.nki.memory import AccessPattern, Buffer

_LARGEST = 1 << 28  # elements; beyond, a buffer counts as written after its first write

Flags = np.ndarray  # of bool. NumPy's: PyTorch would start a team of threads for each, which waits where cores are busy


class WrittenMask:
    """One flag for each element of a buffer. Writes of all of it, the common case, need no flags."""

    def __init__(self, buffer: Buffer, full: bool = False) -> None:
        self.buffer = buffer
        self.full = full
        self._flags: Flags | None = None
        self._marked = 0

    @property
    def is_empty(self) -> bool:
        return not self.full and self._flags is None

    def _view(self, access: AccessPattern) -> Flags | None:
        """The flags of a static access; None where its elements do not match those of the buffer."""
        assert self._flags is not None
        mine, theirs = self.buffer.dtype.bytes, access.itemsize
        pattern, offset = list(access.pattern), access.offset
        if theirs > mine:
            ratio = theirs // mine
            pattern, offset = [(s * ratio, c) for s, c in pattern] + [(1, ratio)], offset * ratio
        elif theirs < mine:
            ratio = mine // theirs
            stride, count = pattern[-1]
            if stride != 1 or count % ratio or offset % ratio or any(s % ratio for s, c in pattern[:-1] if c > 1):
                return None
            pattern, offset = [(s // ratio, c) for s, c in pattern[:-1]] + [(1, count // ratio)], offset // ratio
        return np.ndarray([c for _, c in pattern], np.bool_, self._flags, offset, [s for s, _ in pattern])

    def write(self, access: AccessPattern) -> None:
        if self.full:
            return
        if access.covers_buffer or access.dynamic is not None or self.buffer.size > _LARGEST:
            self.full, self._flags = True, None
            if access.dynamic is not None:
                self.buffer.needs_fill = True
            return
        if self._flags is None:
            self._flags = np.zeros(self.buffer.size, np.bool_)
        view = self._view(access)
        if view is None:
            self.full = True
            return
        view[...] = True
        self._marked += view.size
        if self._marked >= self.buffer.size and self._flags.all():
            self.full, self._flags = True, None

    def write_where(self, access: AccessPattern, written: Flags) -> bool:
        """As :meth:`write`, of the elements in ``written``; the others count as never written. False when the mask cannot do that."""
        if self.buffer.size > _LARGEST:
            return False
        if self._flags is None:
            self._flags, self.full = np.full(self.buffer.size, self.full), False
        view = self._view(access)
        if view is None or view.size != written.size:
            return False
        view[...] = written.reshape(view.shape)
        self._marked = 0
        return True

    def covers(self, access: AccessPattern) -> bool:
        if self.full:
            return True
        if self._flags is None:
            return False
        view = None if access.dynamic is not None else self._view(access)
        return view is None or bool(view.all())

    def misses(self, access: AccessPattern) -> bool:
        if self.full or self._flags is None:
            return not self.full
        view = self._view(access)
        return view is not None and not view.any()

    def holes(self) -> str:
        """Which elements were never written, in words; empty when all were."""
        if self.full:
            return ""
        missing = self.buffer.size if self._flags is None else self.buffer.size - int(self._flags.sum())
        if not missing:
            return ""
        first = 0 if self._flags is None else int(self._flags.argmin())
        place = [int(n) for n in np.unravel_index(first, self.buffer.shape)]
        return f"{missing} of its {self.buffer.size} elements were never written, the first of them {place}"

    def known(self, access: AccessPattern) -> Flags:
        """The flags of a static access; all set where its elements do not match those of the buffer."""
        if self.full or self._flags is None:
            return np.full(access.shape, self.full)
        view = self._view(access)
        return np.ones(access.shape, np.bool_) if view is None else view
