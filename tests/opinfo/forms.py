"""The ways to call an op: functional (with gradients), in place, and with ``out=`` in two states. Each gives an Outcome on a device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

from .expectations import HOST_ARGUMENTS, STRIDED_OUT_BREAKS_THE_CPU
from .samples import Placement

SEED = 1


@dataclass
class Outcome:
    outputs: list[Any]
    gradients: list[torch.Tensor | None] | None


Form = Callable[[str], Outcome]  # takes a device


class Call:
    """One sample's arguments, copied to a device at each run, ``shift`` elements further into their storages."""

    def __init__(self, op: OpInfo, sample: SampleInput, shift: int = 0) -> None:
        self.op, self.sample, self.shift = op, sample, shift

    def place(self, device: str) -> tuple[Placement, Any, Any, Any]:
        place = Placement(device, self.shift)
        place_args = Placement("cpu", self.shift) if self.op.name in HOST_ARGUMENTS else place
        value, args, kwargs = place(self.sample.input), place_args(self.sample.args), place_args(self.sample.kwargs)
        torch.manual_seed(SEED)
        return place, value, args, kwargs

    def functional(self, device: str) -> Outcome:
        """Forward, and the gradients of the inputs that require them."""
        place, value, args, kwargs = self.place(device)
        with torch.device(device):  # for factories that are called without a device
            result = self.op(value, *args, **kwargs)
        outputs = tree_leaves(result)
        leaves = [tensor for tensor in place.tensors if tensor.requires_grad]
        if not leaves:
            return Outcome(outputs, None)
        processed = tree_leaves(self.sample.output_process_fn_grad(result))
        differentiable = [out for out in processed if isinstance(out, torch.Tensor) and out.requires_grad]
        if not differentiable:
            return Outcome(outputs, None)
        return Outcome(outputs, list(torch.autograd.grad(differentiable, leaves, cotangents(differentiable), allow_unused=True)))

    def in_place(self, device: str) -> Outcome:
        """What it returns, and what became of the input."""
        _, value, args, kwargs = self.place(device)
        with torch.no_grad():
            result = self.op.inplace_variant(value, *args, **kwargs)
        return Outcome([result, value], None)

    def out(self, like: list[torch.Tensor], empty: bool) -> Form:
        """With ``out=``: tensors to resize (``empty``), or of the right size but with the strides reversed."""

        def make(expected: torch.Tensor, device: str) -> torch.Tensor:
            if empty:
                return torch.empty(0, dtype=expected.dtype, device=device)
            reverse = list(range(expected.dim()))[::-1]
            return torch.zeros([expected.size(dim) for dim in reverse], dtype=expected.dtype, device=device).permute(reverse)

        def run(device: str) -> Outcome:
            _, value, args, kwargs = self.place(device)
            outs = [make(expected, device) for expected in like]
            broken = device == "cpu" and self.op.name in STRIDED_OUT_BREAKS_THE_CPU
            given = [torch.empty(out.shape, dtype=out.dtype) for out in outs] if broken else outs
            with torch.no_grad(), torch.device(device):
                result = self.op(value, *args, **kwargs, out=given[0] if len(given) == 1 else tuple(given))
                if broken:  # what it would be if the CPU had written to them
                    result = [out.copy_(right) for out, right in zip(outs, given, strict=True)]
            return Outcome([*tree_leaves(result), *outs], None)

        return run


def cotangents(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same for every device: drawn on the CPU."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = [torch.randn(out.shape, dtype=out.dtype, generator=generator) for out in outputs]
    return [value.to(out.device) for value, out in zip(drawn, outputs, strict=True)]


def other_forms(call: Call, functional: Outcome) -> Iterator[tuple[str, Form]]:
    """The forms beside the functional one that the op has; ``functional`` is its outcome on the CPU."""
    if call.op.inplace_variant is not None and isinstance(call.sample.input, torch.Tensor) and not call.sample.broadcasts_input:
        yield "in place", call.in_place
    tensors = [out for out in functional.outputs if isinstance(out, torch.Tensor)]
    if call.op.supports_out and tensors and len(tensors) == len(functional.outputs):
        yield "out= of size 0", call.out(tensors, empty=True)
        yield "out= strided", call.out(tensors, empty=False)
