"""DLPack and array interface for tensors on ``neuron``.

``torch.from_dlpack(tensor)`` asks ``Tensor.__dlpack_device__``, which compares the device's type with the literal ``"privateuse1"`` and so
knows no renamed backend (torch/_tensor.py, 2.13 and 2.14): it raises "Unknown device type neuron for Dlpack". These functions do what it
should. numpy cannot hold device memory: ``tensor.numpy(force=True)`` and ``tensor.cpu().numpy()`` copy.
"""

from __future__ import annotations

from typing import Any

import torch


def to_dlpack(tensor: torch.Tensor, *, max_version: tuple[int, int] | None = None) -> Any:
    """A DLPack capsule that shares the tensor's memory, of any shape and strides; device type kDLExtDev for a tensor on ``neuron``.

    Nothing is waited for. Within this process the capsule's memory is ordered by the current stream, as the tensor's is; a consumer that
    does not use this backend's streams needs ``torch.neuron.synchronize()`` first, and the capsule holds a *device* address.

    Args:
        max_version: newest DLPack version that the consumer reads; None gives the unversioned capsule, which all read.

    Raises:
        TypeError: not a tensor.
        BufferError: what a capsule cannot say would be lost: a gradient, a lazy conjugate or negation, a layout other than strided.
    """
    _check_exportable(tensor, "to_dlpack")
    return tensor.__dlpack__(max_version=max_version)


def from_dlpack(source: Any, *, device: torch.device | str | None = None, copy: bool | None = None) -> torch.Tensor:
    """What ``torch.from_dlpack`` gives, for tensors on ``neuron`` too: a tensor without gradient that shares the source's memory.

    Args:
        source: a tensor, any object with ``__dlpack__`` (a numpy array, say), or a capsule, which can be read once.
        device: where the result shall be; None keeps the source's. Another device than the source's takes a copy.
        copy: True copies always, False never, None only for another device.

    Raises:
        BufferError: see :func:`to_dlpack`.
        ValueError: ``copy=False`` with another device than the source's, or ``device`` or ``copy`` with a capsule.
    """
    if isinstance(source, torch.Tensor):
        _check_exportable(source, "from_dlpack")
        # Sharing the storage itself, where a capsule makes a second one, keeps record_stream() and is_set_to() working.
        return _place(source.detach(), device, copy)
    if not hasattr(source, "__dlpack__"):
        if device is not None or copy is not None:
            raise ValueError("from_dlpack cannot take device= or copy= with a capsule: convert first, then call .to(device) or .clone()")
        return torch.from_dlpack(source)
    return torch.from_dlpack(source, device=_with_index(device), copy=copy)


def array_interface(tensor: torch.Tensor) -> dict[str, Any]:
    """The tensor's memory in the words of the CUDA Array Interface, version 3, as ``Tensor.__cuda_array_interface__`` has them on CUDA
    (https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html), for code that hands device addresses to another library.

    ``shape``, ``typestr`` (numpy's), ``data``: (device address, False), ``strides`` in bytes or None when contiguous, ``version``: 3, and
    ``stream``: id of the current stream of the tensor's device, after whose work the memory may be read. The tensor must stay alive.

    Raises:
        TypeError: not a tensor on ``neuron``, or its dtype has no name in numpy (bfloat16, float8...): view it as integers.
        BufferError: see :func:`to_dlpack`.
    """
    _check_exportable(tensor, "array_interface")
    if tensor.device.type != "neuron":
        raise TypeError(f"array_interface takes a tensor on neuron, not on {tensor.device}: numpy.asarray() takes one on the CPU")
    try:
        typestr = torch.empty(0, dtype=tensor.dtype).numpy().dtype.str
    except TypeError:
        integers = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}.get(tensor.itemsize, "uint8")
        raise TypeError(f"numpy has no name for {tensor.dtype}: pass tensor.view(torch.{integers})") from None
    return {
        "shape": tuple(tensor.shape),
        "typestr": typestr,
        "data": (tensor.data_ptr() if tensor.numel() else 0, False),
        "strides": None if tensor.is_contiguous() else tuple(stride * tensor.itemsize for stride in tensor.stride()),
        "version": 3,
        "stream": torch.accelerator.current_stream(tensor.device).stream_id,
    }


def _place(tensor: torch.Tensor, device: torch.device | str | None, copy: bool | None) -> torch.Tensor:
    target = tensor.device if device is None else _with_index(device)
    if target != tensor.device:
        if copy is False:
            raise ValueError(
                f"from_dlpack cannot move a tensor from {tensor.device} to {target} without a copy: pass copy=None or copy=True"
            )
        return tensor.to(target)
    return tensor.clone() if copy else tensor


def _with_index(device: torch.device | str | None) -> torch.device | None:
    """``neuron`` is the current device; PyTorch's DLPack code compares devices with their index."""
    if device is None:
        return None
    device = torch.device(device)
    if device.type == "neuron" and device.index is None:
        return torch.device("neuron", torch.accelerator.current_device_index())
    return device


def _check_exportable(tensor: torch.Tensor, function: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{function} takes a torch.Tensor, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise BufferError(f"{function} takes strided tensors, not {tensor.layout}: pass its parts, or tensor.to_dense()")
    if tensor.requires_grad:
        raise BufferError(f"{function} cannot keep a gradient: pass tensor.detach()")
    if tensor.is_conj():
        raise BufferError(f"{function} cannot keep a lazy conjugate: pass tensor.resolve_conj()")
    if tensor.is_neg():
        raise BufferError(f"{function} cannot keep a lazy negation: pass tensor.resolve_neg()")
