"""What the suites share: inputs drawn on the CPU, moved with their strides, and results compared with the CPU's leaf by leaf."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.testing._internal.common_utils import TestCase
from torch.utils._pytree import tree_leaves

from tests.opinfo.check import SeesRandomOps

SEED = 1


@contextmanager
def seeded(device: str) -> Iterator[None]:
    """The same random numbers at every entry; the generators come out as they went in."""
    kind = torch.device(device).type
    with torch.random.fork_rng(device_type="neuron", enabled=True):
        torch.manual_seed(SEED)
        if kind != "cpu":
            torch.get_device_module(kind).manual_seed_all(SEED)
        yield


def draws(function: Any) -> bool:
    """Whether ``function``, run on the CPU, draws random numbers: then its values are not comparable between devices."""
    with SeesRandomOps() as mode, seeded("cpu"):
        function()
    return mode.found


def assert_matches(case: TestCase, actual: Any, expected: Any, device: str, values: bool = True, strides: bool = True) -> None:
    """``actual``, on ``device``, is what the CPU gave: structure, dtypes, sizes, strides and (``values``) values.

    The tolerance is the test's own (PyTorch's defaults, or what its database allows for this test).
    """
    got, wanted = tree_leaves(actual), tree_leaves(expected)
    case.assertEqual(len(got), len(wanted))
    for index, (a, e) in enumerate(zip(got, wanted, strict=True)):
        if isinstance(e, torch.Tensor):
            assert_tensor_matches(case, a, e, torch.device(device).type, values, strides, f"result {index}")
            continue
        case.assertIs(type(a), type(e))
        if values:
            case.assertEqual(a, e)


def assert_tensor_matches(case: TestCase, a: torch.Tensor, e: torch.Tensor, kind: str, values: bool, strides: bool, name: str) -> None:
    # TestCase.assertEqual takes a millisecond: only where it can make a difference.
    if a.device.type != kind:
        case.fail(f"{name} is on {a.device}, expected on {kind}")
    if (a.dtype, a.shape, a.layout) != (e.dtype, e.shape, e.layout):
        case.fail(f"{name}: {a.dtype} {tuple(a.shape)} {a.layout}, expected {e.dtype} {tuple(e.shape)} {e.layout}")
    if strides and e.layout is torch.strided and e.numel() > 1 and a.stride() != e.stride():
        case.fail(f"{name}: strides {a.stride()}, expected {e.stride()}")
    if not values:
        return
    on_host, e = a.detach().cpu(), e.detach()
    comparable = e.layout is torch.strided and not e.is_quantized and e.dtype is not torch.complex32  # what torch.equal takes
    if comparable and torch.equal(on_host, e):
        return
    case.assertEqual(on_host, e, exact_device=False, msg=lambda text: f"{name}: {text}")
