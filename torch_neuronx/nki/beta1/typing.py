"""``neuronxcc.nki.typing``."""

from torch_neuronx.nki.typing import mutable_tensor, scalar, tensor

__all__ = ["mutable_tensor", "scalar", "tensor"]
