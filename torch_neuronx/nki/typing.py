"""``nki.typing``: annotations. ``nt.tensor[128, 512]`` says a shape, ``nt.mutable_tensor`` that the kernel writes to a parameter."""

from __future__ import annotations

from typing import Any


class _Annotation:
    def __init__(self, name: str, shape: Any = None) -> None:
        self.name, self.shape = name, shape

    def __getitem__(self, shape: Any) -> _Annotation:
        return _Annotation(self.name, shape)

    def __call__(self, *args: Any, **kwargs: Any) -> _Annotation:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return self.name if self.shape is None else f"{self.name}{self.shape}"


tensor = _Annotation("tensor")
mutable_tensor = _Annotation("mutable_tensor")
scalar = _Annotation("scalar")
