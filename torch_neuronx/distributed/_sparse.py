"""``all_reduce`` of sparse COO tensors, as Gloo does it: all ranks' elements are gathered, and what coincides is added up.

DDP calls it for the gradients of ``Embedding(sparse=True)``. Ranks hold different numbers of elements, which the host has to know, so the
call waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_library: Any = None


def register() -> None:
    """Called once, when the backend loads. PyTorch has this kernel for the sparse tensors of the CPU and of CUDA only."""
    global _library
    _library = torch.library.Library("c10d", "IMPL", "SparsePrivateUse1")
    _library.impl("allreduce_", _allreduce)


def _allreduce(
    tensors: list[torch.Tensor], group: Any, operator: Any, _indices: Any = None, _async_op: bool = True, _timeout: int = -1
) -> Any:
    """One tensor a rank, of equal shape and numbers of sparse and dense dimensions; sums alone. Results are coalesced."""
    if len(tensors) != 1 or operator.op() != dist.ReduceOp.SUM:
        raise ValueError("all_reduce of sparse tensors takes one tensor, and sums: use ReduceOp.SUM, or to_dense() for other operators")
    group = dist.ProcessGroup.unbox(group)
    tensor = tensors[0].coalesce()
    counts = torch.empty(group.size(), dtype=torch.int64, device=tensor.device)
    group._allgather_base(counts, torch.full((1,), tensor._nnz(), device=tensor.device)).wait()
    numbers = counts.tolist()
    places, _ = _gathered(group, tensor.indices().t(), numbers)
    values, work = _gathered(group, tensor.values(), numbers)
    tensors[0].copy_(torch.sparse_coo_tensor(places.t(), values, tensor.shape).coalesce())
    return tensors, work.boxed()


def _gathered(group: Any, rows: torch.Tensor, numbers: list[int]) -> tuple[torch.Tensor, Any]:
    """``numbers[r]`` rows of each rank r, one after the other. They travel padded: between hosts Gloo takes equal sizes only."""
    padded = rows.new_zeros((max(numbers), *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in numbers]
    work = group.allgather([parts], [padded])
    work.wait()
    return torch.cat([part[:number] for part, number in zip(parts, numbers, strict=True)]), work
