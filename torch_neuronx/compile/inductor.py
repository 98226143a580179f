"""``torch.compile(backend="inductor")`` cannot work on `neuron`; this says so, in Inductor's own table of devices."""

from __future__ import annotations

from typing import Any, NoReturn

from torch_neuronx._utils import DEVICE


class _Refuses(type):
    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            f'Inductor has no code generator for device "{DEVICE}". Use torch.compile(model, backend="{DEVICE}"), '
            "which is also what torch.compile(model) without a backend takes."
        )

    def __getattr__(cls, name: str) -> NoReturn:
        cls()


class _CodeGenerator(metaclass=_Refuses):
    """Stands for Inductor's scheduling and wrapper classes: whatever is asked of it raises."""


def register() -> None:
    """Makes Inductor refuse `neuron` where it would fail with a KeyError or an assertion."""
    from torch._inductor.codegen import common

    common.register_backend_for_device(DEVICE, _CodeGenerator, _CodeGenerator, _CodeGenerator, _CodeGenerator)  # type: ignore[arg-type]
