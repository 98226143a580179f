"""Copies between devices of one process, for ``torch.nn.DataParallel`` and ``torch.nn.parallel.comm``.

Both call functions of ``torch._C`` that PyTorch compiles for CUDA only, and take whatever accelerator there is: without these,
``DataParallel(model)`` fails on a CPU-only build as soon as this backend is loaded, even in scripts that never name the device.
:func:`offer` therefore supplies the missing ones. It replaces nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

_CPU = -1  # as a destination


def _device(index: int | None) -> torch.device:
    if index == _CPU:
        return torch.device("cpu")
    return torch.device("neuron") if index is None else torch.device("neuron", index)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """A copy for each device; ``tensor`` itself for its own."""
    return [tensor.to(_device(index), non_blocking=True) for index in devices]


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    for destination in out:
        if destination.shape != tensor.shape:
            raise RuntimeError(f"broadcast: out has shape {tuple(destination.shape)}, but the tensor {tuple(tensor.shape)}")
        destination.copy_(tensor, non_blocking=True)
    return out


def _broadcast_coalesced(tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int) -> list[list[torch.Tensor]]:
    """All tensors for each device. ``buffer_size`` is for devices where a small copy costs as much as a large one."""
    return [[tensor.to(_device(index), non_blocking=True) for tensor in tensors] for index in devices]


def _chunks(tensor: torch.Tensor, count: int, sizes: Sequence[int] | None, dim: int) -> Sequence[torch.Tensor]:
    if sizes is None:
        return tensor.chunk(count, dim)
    if len(sizes) != count or sum(sizes) != tensor.size(dim):
        raise RuntimeError(
            f"scatter: chunk_sizes {list(sizes)} must have one entry for each of the {count} devices and add up to "
            f"{tensor.size(dim)}, the size of dimension {dim}"
        )
    return tensor.split(list(sizes), dim)


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: Sequence[Any] | None = None
) -> list[torch.Tensor]:
    """A chunk along ``dim`` for each device, copied on its stream of ``streams``; fewer chunks than devices if ``dim`` is short."""
    chunks = _chunks(tensor, len(devices), chunk_sizes, dim)
    results = []
    for position, chunk in enumerate(chunks):
        stream = streams[position] if streams is not None else None
        with stream if stream is not None else nullcontext():
            results.append(chunk.contiguous().to(_device(devices[position]), non_blocking=True))
    return results


def _scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Sequence[Any] | None = None
) -> Sequence[torch.Tensor]:
    chunks = _chunks(tensor, len(out), [destination.size(dim) for destination in out], dim)
    for position, (chunk, destination) in enumerate(zip(chunks, out, strict=True)):
        stream = streams[position] if streams is not None else None
        with stream if stream is not None else nullcontext():
            destination.copy_(chunk, non_blocking=True)
    return out


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """All tensors, concatenated on one device."""
    device = _device(destination)
    return torch.cat([tensor.to(device, non_blocking=device.type != "cpu") for tensor in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    size = sum(tensor.size(dim) for tensor in tensors)
    if out.size(dim) != size:
        raise RuntimeError(f"gather: out has size {out.size(dim)} in dimension {dim}, but the tensors have {size} together")
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


def offer() -> None:
    """Gives ``torch._C`` those of the functions that this build of PyTorch lacks."""
    for function in (_broadcast, _broadcast_out, _broadcast_coalesced, _scatter, _scatter_out, _gather, _gather_out):
        if not hasattr(torch._C, function.__name__):
            setattr(torch._C, function.__name__, function)
