"""Copies of sample inputs on a device that keep what matters to a kernel: strides, offsets, overlap, conj and neg bits, identity."""

from typing import Any

import torch


def copy_tensor(tensor: torch.Tensor, device: str, shift: int = 0) -> torch.Tensor:
    """A leaf on ``device`` with the values, sizes, strides, storage offset (plus ``shift``) and ``requires_grad`` of ``tensor``."""
    source = tensor.detach()
    if source.layout is not torch.strided or source.is_nested or source.is_quantized:
        copy = source.to(device, copy=True)
    elif source.is_conj():
        return copy_tensor(source.conj(), device, shift).conj().requires_grad_(tensor.requires_grad)
    elif source.is_neg():
        return copy_tensor(torch._neg_view(source), device, shift)._neg_view().requires_grad_(tensor.requires_grad)
    else:
        elements = source.untyped_storage().nbytes() // source.element_size()
        whole = torch.zeros(elements + shift, dtype=source.dtype, device=device)
        whole[shift:].copy_(torch.as_strided(source, (elements,), (1,), 0))
        copy = torch.as_strided(whole, source.size(), source.stride(), source.storage_offset() + shift)
    return copy.detach().requires_grad_(tensor.requires_grad)


class Placement:
    """Copies arguments to one device, ``shift`` elements further into their storages; an object that occurs twice stays one object."""

    def __init__(self, device: str, shift: int = 0) -> None:
        self.device, self.shift = device, shift
        self.tensors: list[torch.Tensor] = []
        self._seen: dict[int, torch.Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._seen:
                self._seen[id(value)] = copy_tensor(value, self.device, self.shift)
                self.tensors.append(self._seen[id(value)])
            return self._seen[id(value)]
        if isinstance(value, torch.device) or value == "cpu":
            return type(value)(self.device)
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device).manual_seed(value.initial_seed())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self, value))
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(map(self, value))
        if isinstance(value, dict):
            return {key: self(item) for key, item in value.items()}
        return value
