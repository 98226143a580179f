"""``torch_neuronx.buckets()``: which sizes the dynamic dimensions of compiled graphs are rounded up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Policy:
    """Checked arguments of :class:`buckets`. ``sizes`` None: powers of two; ``dims`` None: all."""

    sizes: tuple[int, ...] | None
    smallest: int
    largest: int | None
    dims: frozenset[int] | None

    def choose(self, size: int, dim: int | None) -> tuple[int | None, str]:
        """The bucket for ``size`` in dimension ``dim`` of the input that it comes from; or None, and why there is none."""
        if self.dims is not None and dim not in self.dims:
            return None, f"dimension {dim} is not one of dims={sorted(self.dims)}"
        if self.sizes is not None:
            found = next((bucket for bucket in self.sizes if bucket >= size), None)
            return found, f"{size} is larger than the largest bucket, {self.sizes[-1]}"
        if self.largest is not None and size > self.largest:
            return None, f"{size} is larger than max={self.largest}"
        bucket = max(self.smallest, 1 << (size - 1).bit_length())
        return (bucket if self.largest is None else min(bucket, self.largest)), ""


class buckets:
    """Rounds dynamic sizes of compiled graphs up to a few, so that a chip needs a program for each bucket, not for each size.

    A setting of the process from the call on, as :func:`torch.set_grad_enabled` is one of the thread; in a ``with`` statement, until the
    end of the block. Sizes that :func:`torch.compile` made symbolic (``dynamic=True``, :func:`torch._dynamo.mark_dynamic`) are rounded up
    where it is proven that what is added cannot change a result; all other sizes stay exact. ``torch.neuron.explain()`` tells which
    dimensions were rounded, and what kept the others from it.

    >>> torch_neuronx.buckets()  # powers of two
    >>> torch_neuronx.buckets([128, 512, 2048])  # these; larger sizes stay exact
    >>> torch_neuronx.buckets(min=16, max=4096, dims=[1])  # powers of two from 16, in dimension 1 of the inputs alone
    >>> torch_neuronx.buckets(False)  # off, as at first
    >>> with torch_neuronx.buckets(min=32):
    ...     loss = step(batch)

    Args:
        sizes: the buckets, positive whole numbers; True (the default): powers of two; False or None: no buckets.
        min: smallest power of two that is used. Not together with a list.
        max: largest bucket; where it is no power of two, it is the last bucket itself. Not together with a list.
        dims: dimensions of the function's tensor arguments that may be rounded, default all. What is named is where a size comes from: one
            symbolic size is one dimension of one argument, wherever else it turns up.

    Raises:
        ValueError, TypeError: of what was given.
    """

    _policy: Policy | None = None

    def __init__(
        self,
        sizes: Iterable[int] | bool | None = True,
        *,
        min: int | None = None,
        max: int | None = None,
        dims: int | Sequence[int] | None = None,
    ) -> None:
        self._before = buckets._policy
        buckets._policy = _policy(sizes, min, max, dims)

    def __enter__(self) -> buckets:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        buckets._policy = self._before

    def __repr__(self) -> str:
        return f"<torch_neuronx.buckets: {buckets._policy or 'off'}>"

    @staticmethod
    def current() -> Policy | None:
        """What holds now; None: no buckets."""
        return buckets._policy


def _policy(sizes: Any, smallest: int | None, largest: int | None, dims: Any) -> Policy | None:
    given = [f"{name}={value}" for name, value in (("min", smallest), ("max", largest), ("dims", dims)) if value is not None]
    if sizes is None or sizes is False:
        if given:
            raise ValueError(f"torch_neuronx.buckets({sizes}) turns buckets off, so {', '.join(given)} has no meaning")
        return None
    for name, value in (("min", smallest), ("max", largest)):
        if value is not None:
            _check(value, name)
    if dims is not None:
        dims = [dims] if isinstance(dims, int) else list(dims)
        if not all(isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 for dim in dims) or not dims:
            raise ValueError(f"dims of torch_neuronx.buckets() are numbers of dimensions from 0 on, but got {dims}")
        dims = frozenset(dims)
    if sizes is True:
        if smallest is not None and largest is not None and smallest > largest:
            raise ValueError(f"torch_neuronx.buckets(min={smallest}, max={largest}): min is larger than max")
        return Policy(None, 1 << ((smallest or 1) - 1).bit_length(), largest, dims)
    if isinstance(sizes, (int, str)):
        raise TypeError(f"torch_neuronx.buckets() takes a list of sizes, as in torch_neuronx.buckets([64, 256]), but got {sizes!r}")
    if smallest is not None or largest is not None:
        raise ValueError("torch_neuronx.buckets() takes a list of sizes, or min and max of powers of two, not both")
    listed = tuple(sorted({_check(size, "a bucket") for size in sizes}))
    if not listed:
        raise ValueError("torch_neuronx.buckets([]) has no sizes; torch_neuronx.buckets(False) turns buckets off")
    return Policy(listed, 1, None, dims)


def _check(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} of torch_neuronx.buckets() is a whole number from 1 on, but got {value!r}")
    return int(value)
