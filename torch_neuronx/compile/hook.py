"""Calls back once ``torch._dynamo``, ``torch._inductor``'s table of devices, or ring attention has been imported, by whoever does.

The default backend, the device interface and Inductor's devices live in registries whose import is that of Dynamo (1.5 s), so they cannot
be filled when the device is loaded. A finder in front of ``sys.meta_path`` waits for the imports; it leaves when it has seen all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def _dynamo_is_there() -> None:
    from torch_neuronx.compile import default, device_interface, tracing

    tracing.register()
    device_interface.register()
    default.register()


def _inductor_is_there() -> None:
    from torch_neuronx.compile import inductor

    inductor.register()


def _ring_attention_is_there() -> None:
    from torch_neuronx.distributed import _ring_attention

    _ring_attention.register()


_CALLBACKS: dict[str, Callable[[], None]] = {
    "torch._dynamo": _dynamo_is_there,
    "torch._inductor.codegen.common": _inductor_is_there,
    "torch.distributed.tensor.experimental._context_parallel._attention": _ring_attention_is_there,
}


def install() -> None:
    """Calls back now for what is imported already, and for the rest when it will be."""
    waiting = {}
    for module, callback in _CALLBACKS.items():
        if module in sys.modules:
            callback()
        else:
            waiting[module] = callback
    if waiting:
        sys.meta_path.insert(0, _Finder(waiting))


def after_import(module: str, callback: Callable[[], None]) -> None:
    """Calls back now if ``module`` is imported already, else when it will be."""
    if module in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _Finder({module: callback}))


class _Finder(MetaPathFinder):
    def __init__(self, waiting: dict[str, Callable[[], None]]):
        self._waiting = waiting

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        callback = self._waiting.pop(name, None)  # so that the search below does not come back here
        if callback is None:
            return None
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, callback)
        return spec


class _Loader(Loader):
    """Loads as ``inner`` does, then calls back."""

    def __init__(self, inner: Any, callback: Callable[[], None]):
        self.inner, self.callback = inner, callback

    def __getattr__(self, name: str) -> Any:  # get_source(), get_filename(), resource readers...
        return getattr(self.inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        self.callback()
