"""Which elements of a result are known when an instruction's operands were written only in part.

Kernels compute edge tiles whole: what lies beside the data was never written, and so is what becomes of it. That is no error as long as it
stays where it is. The error is to use it: to reduce over it, to multiply matrices with it, to store it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torch_neuronx.nki.instruction import Instruction
from torch_neuronx.nki.written import Flags as Known  # [partitions, free size]


def _elementwise(i: Instruction, known: Sequence[Known]) -> Known | None:
    dst = i.writes[0]
    result = np.ones((dst.partitions, dst.free_size), np.bool_)
    for one in known:
        if one.shape[0] != dst.partitions or one.shape[1] not in (1, dst.free_size):
            return None
        result &= one
    return result


def _transpose(i: Instruction, known: Sequence[Known]) -> Known | None:
    return known[0].T


def _shuffle(i: Instruction, known: Sequence[Known]) -> Known | None:
    """What stays in the destination is the second operand."""
    source = known[0]
    result = known[1].copy() if len(known) > 1 else np.zeros((i.writes[0].partitions, source.shape[1]), np.bool_)
    for row in range(len(result)):
        chosen = i.attrs["shuffle_mask"][row % 32]
        if chosen != 255 and row // 32 * 32 + chosen < len(source):
            result[row] = source[row // 32 * 32 + chosen]
    return result


_ELEMENTWISE = "tensor_copy dma_copy sendrecv tensor_tensor tensor_scalar scalar_tensor_tensor activation activate2 exponential reciprocal"
_RULES: dict[str, Callable[[Instruction, Sequence[Known]], Known | None]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),  # cores that exchange run one program
    "nc_transpose": _transpose,
    "nc_stream_shuffle": _shuffle,
}


def may_move(i: Instruction) -> bool:
    """True for instructions that use no element for another one's result, on tiles with known addresses."""
    return i.opcode in _RULES and len(i.writes) == 1 and all(not a.is_dynamic and a.region.on_chip for a in (*i.reads, *i.writes))


def known_in_result(i: Instruction, known: Sequence[Known]) -> Known | None:
    """The known elements of ``i.writes[0]``; None when the operands' layouts do not say.

    Args:
        known: those of each of ``i.reads``.
    """
    return _RULES[i.opcode](i, known)
