"""Arrays of callers (NumPy, PyTorch on any device, JAX) and flat memory for the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_neuronx import _C
from torch_neuronx.nki import dtypes
from torch_neuronx.nki.dtypes import DType

_BITS = {1: np.uint8, 2: np.int16, 4: np.int32}


def is_array(value: Any) -> bool:
    """True for what a kernel sees as a tensor."""
    return isinstance(value, (torch.Tensor, np.ndarray)) or (hasattr(value, "__dlpack__") and hasattr(value, "shape"))


def dtype_of(value: Any) -> DType:
    """The NKI dtype of an array.

    Raises:
        ValueError: NKI has none for it.
    """
    return dtypes.dtype(value.dtype if isinstance(value, torch.Tensor) else _numpy_name(value.dtype))


def _numpy_name(dtype: Any) -> Any:
    return (getattr(dtype, "metadata", None) and dtype.metadata.get("nki")) or getattr(dtype, "name", dtype)


def from_numpy(array: np.ndarray) -> tuple[torch.Tensor, DType]:
    """A tensor of the storage dtype over the memory of a contiguous array."""
    kind = dtypes.dtype(_numpy_name(array.dtype))
    shape = array.shape
    if not array.flags.writeable:
        array = array.copy()
    plain = torch.from_numpy(np.atleast_1d(array).view(_BITS[kind.bytes]))
    return plain.view(kind.storage).reshape(shape), kind


def to_numpy(tensor: torch.Tensor, kind: DType) -> np.ndarray:
    """A NumPy array of dtype ``kind`` over a CPU tensor of its storage dtype."""
    from torch_neuronx.nki.numpy_dtypes import numpy_dtype

    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[kind.bytes]
    return tensor.contiguous().view(bits).numpy().view(numpy_dtype(kind.name))


@dataclass
class Argument:
    """One array argument of a launch: flat memory, and what to do with it afterwards."""

    value: Any
    memory: torch.Tensor  # contiguous; on the CPU or on `neuron`
    copied: bool  # memory is not the caller's: a written argument is copied back

    @property
    def address(self) -> int:
        """Where the host finds the memory."""
        return int(_C._nki_address(self.memory))

    def copy_back(self) -> None:
        if not self.copied:
            return
        if isinstance(self.value, torch.Tensor):
            self.value.copy_(self.memory.view(self.value.dtype).reshape(self.value.shape))
        elif isinstance(self.value, np.ndarray):
            if not self.value.flags.writeable:
                raise ValueError("the kernel writes to an argument that is a read-only NumPy array. Pass a copy: array.copy()")
            kind = dtype_of(self.value)
            self.value[...] = to_numpy(self.memory.view(kind.storage).reshape(self.value.shape), kind)
        else:
            raise ValueError("the kernel writes to a JAX array, which is immutable. Pass a NumPy array or a tensor")


def argument(value: Any) -> Argument:
    """Memory of an argument: its own where it is contiguous."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        dense = tensor.contiguous()
        return Argument(value, dense, dense.data_ptr() != tensor.data_ptr() or tensor.is_conj())
    if isinstance(value, np.ndarray):
        dense_array = np.ascontiguousarray(value)
        tensor, _ = from_numpy(dense_array)
        shares = dense_array.base is value or dense_array is value
        return Argument(value, tensor, not (shares and value.flags.writeable))
    tensor, _ = from_numpy(np.ascontiguousarray(np.asarray(value)))
    return Argument(value, tensor, True)


def settle(arguments: Sequence[Argument]) -> None:
    """Waits until the current streams of their devices have got as far as they are now."""
    for device in {one.memory.device for one in arguments if one.memory.device.type == "neuron"}:
        torch.neuron.current_stream(device).synchronize()  # type: ignore[attr-defined]


def to_tensor(flat: torch.Tensor, kind: DType, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor for callers from flat bytes (packed types and Trainium's e4m3 are integers of their size)."""
    stored = flat.view(kind.storage).reshape(shape)
    return stored.view(public_dtype(kind)) if kind.kind != "bool" else stored != 0


def public_dtype(kind: DType) -> torch.dtype:
    """The PyTorch dtype that callers get."""
    if kind.name == "tfloat32":
        return torch.float32
    return kind.torch_dtype or {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[kind.bytes]
