"""Runs a part on padded sizes under ``torch_neuronx.buckets()``, and as it is otherwise."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx._buckets import Policy, buckets
from torch_neuronx.compile.padding.plan import Padded, Plan

Runner = Callable[[list[Any]], Sequence[Any]]


class _Source:
    """The sizes of a plan as one function: symbols' values -> values of all expressions."""

    def __init__(self, names: Sequence[str], expressions: Sequence[str]) -> None:
        self._function = eval(f"lambda {', '.join(names)}: ({''.join(one + ', ' for one in expressions)})", {"__builtins__": {}})

    def __call__(self, values: Sequence[int]) -> tuple[Any, ...]:
        return self._function(*values)


class Bucketed:
    """A part that has a plan: ``run(inputs)``, like the runners of :mod:`torch_neuronx.compile.runtime`.

    Padded inputs are passed as flat tensors of the bucket's size whose first elements are those of the real tensor. A result is flat in the
    same way; it is given out as the real tensor on that memory, so a following part finds the bucket's size behind it and copies nothing.
    """

    def __init__(self, exact: Any, padded: Any, plan: Plan) -> None:
        self.exact, self.padded, self.plan = exact, padded, plan
        names = [symbol.name for symbol in plan.symbols]
        self._at_bucket = _Source(names, [*plan.sizes.values(), *plan.ints])
        self._really = _Source(names, [*plan.numbers, *plan.output_sizes.values()])
        shapes = [*plan.padded.values(), *plan.outputs.values()]
        self._shapes = _Source(names, [f"({''.join(size + ', ' for size in one.sizes)})" for one in shapes])
        self.bucketed: Counter[str] = Counter()  # "L['x'].size(1): 33 to 64 in 64" -> runs
        self.stayed_exact: Counter[str] = Counter()  # why -> runs

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        policy = buckets.current()
        if policy is None:
            return self.exact(inputs)
        for label, why in self.plan.refused.items():
            self.stayed_exact[f"{label}: {why}"] += 1
        chosen = self._choose(policy, inputs) if self.plan.pads else None
        if chosen is None:
            return self.exact(inputs)
        return self._run(inputs, *chosen)

    def _choose(self, policy: Policy, inputs: list[Any]) -> tuple[list[int], list[int]] | None:
        """The real values of the symbols and those that are used; None when none has a bucket."""
        real, used, rounded = [], [], False
        for symbol in self.plan.symbols:
            value = inputs[symbol.input]
            size = value if symbol.input_dim is None else value.shape[symbol.input_dim]
            real.append(size)
            bucket, why = policy.choose(size, symbol.dim) if symbol.bucketed else (None, "")
            if bucket is None:
                if symbol.bucketed:
                    self.stayed_exact[f"{symbol.label}: {why}"] += 1
                used.append(size)
                continue
            if symbol.limit is not None:
                bucket = min(bucket, symbol.limit)
            rounded = True
            used.append(bucket)
            self.bucketed[f"{symbol.label} in {bucket}"] += 1
        return (real, used) if rounded else None

    def _run(self, inputs: list[Any], real: list[int], used: list[int]) -> Sequence[Any]:
        plan = self.plan
        at_bucket, really = self._at_bucket(used), self._really(real)
        real_shapes, used_shapes = self._shapes(real), self._shapes(used)
        device = next(inputs[index] for index in plan.padded).device if plan.padded else None
        for number, (index, padded) in enumerate(plan.padded.items()):
            inputs[index] = _flat(inputs[index], padded, real_shapes[number], math.prod(used_shapes[number]), plan.writes)
        for number, index in enumerate(plan.sizes):
            inputs[index] = at_bucket[number]
        inputs += at_bucket[len(plan.sizes) :]
        if device is None:
            device = next(one.device for one in inputs if isinstance(one, torch.Tensor) and one.device.type == "neuron")
        for index in plan.floats:
            inputs[index] = torch.tensor(inputs[index], dtype=torch.float32).to(device)
        inputs.append(torch.tensor(really[: len(plan.numbers)] or (0,), dtype=torch.int64).to(device))
        results = list(self.padded(inputs))
        for number, (index, padded) in enumerate(plan.outputs.items(), len(plan.padded)):
            shape = real_shapes[number]
            results[index] = results[index].as_strided(shape, _strides(shape, padded.order)).detach()
        for number, index in enumerate(plan.output_sizes, len(plan.numbers)):
            results[index] = really[number]
        return results

    def stats(self) -> dict[str, Any]:
        """Those of both forms together."""
        a, b = self.exact.stats(), self.padded.stats() if self.padded is not None else None
        if b is None:
            return a
        last = b if self.bucketed else a
        kept = ("calls", "steps", "kernels", "groups", "fused_calls", "temporary_bytes", "unwritten_bytes")
        return {name: last[name] if name in kept else _added(a[name], b[name]) for name in a}


def _added(a: Any, b: Any) -> Any:
    return dict(Counter(a) + Counter(b)) if isinstance(a, dict) else a + b


@functools.lru_cache(maxsize=4096)
def _strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Of a dense tensor whose dimensions lie in ``order``."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def _flat(tensor: torch.Tensor, padded: Padded, shape: tuple[int, ...], capacity: int, writes: bool) -> torch.Tensor:
    """``capacity`` elements that begin with those of ``tensor`` in its order."""
    tensor = tensor.detach()
    strides = _strides(shape, padded.order)
    if any(size > 1 and a != b for size, a, b in zip(shape, tensor.stride(), strides, strict=True)):
        tensor = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    elements = math.prod(shape)
    if capacity == elements:
        return tensor.as_strided((elements,), (1,))
    # Memory behind the tensor may be anything: what is read of it is replaced before it is used.
    behind = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if behind >= capacity and not writes:
        return tensor.as_strided((capacity,), (1,))
    flat = torch.empty(capacity, dtype=tensor.dtype, device=tensor.device)
    _C._copy_bytes(flat, tensor)
    return flat
