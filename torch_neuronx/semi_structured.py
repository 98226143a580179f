"""2:4 sparse matrices (1:2 for float32) on ``neuron``: half of the values, and where they were.

``torch.sparse.to_sparse_semi_structured`` asks ``is_cuda`` (torch/sparse/semi_structured.py, 2.13) and refuses every other device. This is
its function and class for ``neuron``, on the same compressed format. A product unpacks the matrix first: what is saved is memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.sparse.semi_structured import SparseSemiStructuredTensorCUTLASS


class SparseSemiStructuredTensorNeuron(SparseSemiStructuredTensorCUTLASS):
    """``torch.sparse.SparseSemiStructuredTensor`` whose parts, and products with dense tensors, are on ``neuron``."""

    BACKEND = "neuron"

    @classmethod
    def _validate_device_dim_dtype_shape(cls, original_tensor: torch.Tensor) -> None:
        tensor, name = original_tensor, "to_sparse_semi_structured"
        if tensor.device.type != "neuron":
            raise RuntimeError(f"torch.neuron.{name} takes a tensor on neuron, not on {tensor.device}")
        if tensor.dim() != 2 or not tensor.is_contiguous():
            raise RuntimeError(f"{name} takes a contiguous matrix, not sizes {tuple(tensor.shape)} with strides {tensor.stride()}")
        if tensor.dtype not in cls._DTYPE_SHAPE_CONSTRAINTS:
            raise RuntimeError(f"{name} takes {', '.join(map(str, cls._DTYPE_SHAPE_CONSTRAINTS))}, not {tensor.dtype}")
        unit = cls._DTYPE_SHAPE_CONSTRAINTS[tensor.dtype]
        rows, columns = tensor.shape
        if not rows or rows % unit.sparse_min_rows or not columns or columns % unit.sparse_min_cols:
            raise RuntimeError(
                f"{name}: sizes {rows} x {columns} must be multiples of {unit.sparse_min_rows} x {unit.sparse_min_cols} in {tensor.dtype}"
            )

    @classmethod
    def from_dense(cls, original_tensor: torch.Tensor, alg_id: int = 0) -> SparseSemiStructuredTensorNeuron:
        """See :func:`to_sparse_semi_structured`. ``alg_id`` chooses a kernel of cuSPARSELt's and means nothing here."""
        cls._validate_device_dim_dtype_shape(original_tensor)
        kept, of = (1, 2) if original_tensor.dtype is torch.float32 else (2, 4)
        if bool(((original_tensor.detach().unflatten(1, (-1, of)) != 0).sum(-1) > kept).any()):
            raise ValueError(
                f"to_sparse_semi_structured: {original_tensor.dtype} keeps {kept} of {of} neighbours in a row, and some have more values "
                "that are not zero"
            )
        return super().from_dense(original_tensor, alg_id)  # type: ignore[return-value]

    def _mm(self, B: torch.Tensor, *, bias: torch.Tensor | None = None, should_transpose_dense: bool = False, **_: Any) -> torch.Tensor:
        if isinstance(B, torch.sparse.SparseSemiStructuredTensor):
            raise ValueError("a semi-structured sparse matrix multiplies a dense one: call to_dense() on one of the two")
        if self.packed is None or self.meta is None:
            raise NotImplementedError("the transpose of a semi-structured sparse matrix stands only on the right: write x @ sparse.t()")
        dense = self.to_dense()
        if should_transpose_dense:  # B @ self.t()
            return torch.mm(B, dense.t()) if bias is None else torch.addmm(bias, B, dense.t())
        return torch.mm(dense, B) if bias is None else torch.addmm(bias[:, None], dense, B)


def to_sparse_semi_structured(original_tensor: torch.Tensor) -> SparseSemiStructuredTensorNeuron:
    """The matrix in compressed form, as ``torch.sparse.to_sparse_semi_structured`` gives it on CUDA.

    Args:
        original_tensor: (rows, columns) on ``neuron``, contiguous, float16, bfloat16 or int8 with at most 2 of 4 neighbours in a row that
            are not zero, or float32 with 1 of 2. Rows and columns are multiples of 32 x 64 (int8: 16 x 128, float32: 32 x 32).

    Raises:
        RuntimeError: device, sizes, strides or dtype are others.
        ValueError: too many values are not zero; they would be lost.
    """
    return SparseSemiStructuredTensorNeuron.from_dense(original_tensor)
