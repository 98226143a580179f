"""Which elements of results are known when an instruction's operands were written only in part.

Kernels compute edge tiles whole: what lies beside the data was never written, and so is what becomes of it. That is no error as long as it
stays where it is. The error is to use it: to reduce over partitions or multiply matrices with it, to let it decide an address, to store it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torch_neuronx.nki.instruction import Instruction
from torch_neuronx.nki.memory import AccessPattern
from torch_neuronx.nki.written import Flags as Known  # [partitions, free size]

Rule = Callable[[Instruction, Sequence[Known]], "Known | None"]


def _elements(i: Instruction, known: Sequence[Known]) -> Known | None:
    """Each element comes from the same one of the operands, and from scalars of its partition."""
    dst = i.writes[0]
    result = np.ones((dst.partitions, dst.free_size), np.bool_)
    for one in known:
        if one.shape[0] != dst.partitions or one.shape[1] not in (1, dst.free_size):
            return None
        result &= one
    return result


def _partitions(i: Instruction, known: Sequence[Known]) -> Known | None:
    """Each partition comes from the same one of the operands."""
    dst = i.writes[0]
    if any(len(one) != dst.partitions for one in known):
        return None
    rows = np.logical_and.reduce([one.all(axis=1) for one in known])
    return np.repeat(rows[:, None], dst.free_size, axis=1)


def _local_gather(i: Instruction, known: Sequence[Known]) -> Known | None:
    """Groups of 16 partitions share their indices."""
    source, index = known
    groups = index.all(axis=1).reshape(-1, 16).all(axis=1)
    return _partitions(i, [source, np.repeat(groups, 16)[:, None]])


def _transpose(i: Instruction, known: Sequence[Known]) -> Known | None:
    return known[0].T


def _shuffle(i: Instruction, known: Sequence[Known]) -> Known | None:
    """The second operand is what stays in the destination."""
    source = known[0]
    result = known[1].copy() if len(known) > 1 else np.zeros((i.writes[0].partitions, source.shape[1]), np.bool_)
    for row in range(len(result)):
        chosen = i.attrs["shuffle_mask"][row % 32]
        if chosen != 255 and row // 32 * 32 + chosen < len(source):
            result[row] = source[row // 32 * 32 + chosen]
    return result


def _received(i: Instruction, known: Sequence[Known]) -> Known | None:
    """Comes from the other core, which is traced by itself and may have written more: uneven halves are exchanged whole."""
    return np.ones((i.writes[0].partitions, i.writes[0].free_size), np.bool_)


_BY_ELEMENT = "tensor_copy dma_copy tensor_tensor tensor_scalar scalar_tensor_tensor activation reciprocal"
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_BY_ELEMENT.split(), _elements),
    **dict.fromkeys("tensor_reduce bn_stats bn_aggr max8 nc_n_gather tensor_tensor_scan".split(), _partitions),
    "local_gather": _local_gather,
    "sendrecv": _received,
    "nc_transpose": _transpose,
    "nc_stream_shuffle": _shuffle,
}


def may_move(i: Instruction) -> bool:
    """True for an instruction that has a rule, on tiles with known addresses."""
    accesses: tuple[AccessPattern, ...] = (*i.reads, *i.writes)
    return i.opcode in _RULES and len(i.writes) == 1 and all(not a.is_dynamic and a.region.on_chip for a in accesses)


def known_in_result(i: Instruction, known: Sequence[Known]) -> Known | None:
    """The known elements of ``i.writes[0]``; None when the operands' layouts do not say.

    Args:
        known: those of each of ``i.reads``.
    """
    return _RULES[i.opcode](i, known)
