"""What the suites on the op table share: a bounded number of samples, tensors of a result, the device's errors at the right place."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map_only

from ..opinfo.expectations import HOST_ARGUMENTS, STRIDED_OUT_BREAKS_THE_CPU, VALUES_ARE_UNDEFINED
from ..opinfo.samples import Placement

__all__ = [
    "STRIDED_OUT_BREAKS_THE_CPU",
    "VALUES_ARE_UNDEFINED",
    "call",
    "drawn_on_cpu",
    "first",
    "host",
    "is_random",
    "processed",
    "settle",
    "tensors",
    "values_defined",
]


def first(samples: Iterable[SampleInput], limit: int) -> Iterator[SampleInput]:
    """The first ``limit`` samples. The tables list the usual case first and then the options, so few samples see most of an op."""
    return islice(samples, limit)


def drawn_on_cpu(op: OpInfo, device: str, dtype: torch.dtype, **options: Any) -> Iterator[SampleInput]:
    """The samples that the CPU's test gets, on ``device``. For properties that depend on the values: where masks leave nothing, or two
    indices coincide, a derivative does not exist, and the two devices draw different numbers. Some samples are even left out by value."""
    for sample in op.sample_inputs("cpu", dtype, **options):
        place = Placement(device)
        place_others = Placement("cpu") if op.name in HOST_ARGUMENTS else place
        yield SampleInput(
            place(sample.input),
            args=place_others(sample.args),
            kwargs=place_others(sample.kwargs),
            output_process_fn_grad=sample.output_process_fn_grad,
            broadcasts_input=sample.broadcasts_input,
            name=sample.name,
        )


def call(function: Any, sample: SampleInput, value: Any = None) -> Any:
    """``function`` of the sample, or with ``value`` in place of its input."""
    return function(sample.input if value is None else value, *sample.args, **sample.kwargs)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def host(tree: Any) -> Any:
    """``tree`` with its tensors on the CPU: comparing there costs one copy, on the device a dozen ops."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), tree)


def processed(sample: SampleInput, result: Any) -> list[torch.Tensor]:
    """The differentiable outputs, as the table wants them differentiated."""
    return [out for out in tensors(sample.output_process_fn_grad(result)) if out.requires_grad]


def settle() -> None:
    """Waits for the device, so that an error of a kernel is raised here."""
    torch.accelerator.synchronize()


def is_random(op: OpInfo) -> bool:
    """Whether results depend on the generator; asked of the dispatcher, over the first samples."""
    from ..opinfo.check import SeesRandomOps

    dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes))
    samples = list(first(op.sample_inputs("cpu", dtype), 3))  # drawn at random themselves
    with SeesRandomOps() as mode:
        for sample in samples:
            call(op, sample)
    return mode.found


def values_defined(op: OpInfo) -> bool:
    """Whether two runs give the same values."""
    return op.name not in VALUES_ARE_UNDEFINED and not is_random(op)
