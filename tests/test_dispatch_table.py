"""Every overload of ATen is either ours or left alone for a stated reason: the dispatcher's table against csrc/aten/registration.cpp."""

from __future__ import annotations

import torch

from torch_neuronx import _C

has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


def aten_overloads() -> list[str]:
    return sorted(
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::") and torch._C._dispatch_has_kernel(name)
    )


def verdict(name: str) -> str:
    base, _, overload = name.partition(".")
    return _C._front_end_verdict(base, overload)


def test_every_overload_with_a_cpu_kernel_is_accounted_for() -> None:
    unexplained = []
    for name in aten_overloads():
        if not has_kernel(name, "CPU"):
            continue
        # After registration a boxed overload answers "own kernel".
        why = verdict(name)
        if why == "own kernel":
            continue
        if why in ("left alone", "changes metadata only", "view", "no tensor and no device"):
            continue
        unexplained.append(f"{name}: {why}")
    assert not unexplained, unexplained


def test_random_overloads_never_reach_the_cpu_generator() -> None:
    for name in aten_overloads():
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base.removeprefix("aten::"), None)
        op = getattr(packet, overload or "default", None)
        if op is None or torch.Tag.nondeterministic_seeded not in op.tags or not has_kernel(name, "CPU"):
            continue
        assert verdict(name) == "own kernel", name


def test_foreach_and_fused_optimizers_are_single_calls() -> None:
    for name in aten_overloads():
        if name.startswith(("aten::_foreach_", "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad")):
            assert has_kernel(name, "PrivateUse1"), name
