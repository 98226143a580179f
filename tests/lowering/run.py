"""Runs Programs as the Trainium target will: storages in, storages out, tensors by their metadata on them."""

from typing import Any

import torch

from torch_neuronx.lowering import Program, lower
from torch_neuronx.lowering.emit import Lowered, Output
from torch_neuronx.lowering.execute import CompiledModule


def storage_of(tensor: torch.Tensor, start: int, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """``shape`` elements of ``dtype`` from byte ``start`` of a tensor's storage."""
    size = torch.Size(shape).numel()
    whole = torch.empty(0, dtype=dtype).set_(tensor.untyped_storage())
    return whole[start // dtype.itemsize :][:size].clone().reshape(shape)


class ProgramRun:
    """One Program, lowered, sent through HLO bytes to XLA:CPU."""

    def __init__(self, program: Program, target: str = "portable") -> None:
        self.program = program
        self.lowered: Lowered = lower(program, target)
        self.compiled = CompiledModule(self.lowered.hlo())

    def __call__(self, *tensors: torch.Tensor, rng: tuple[int, int] = (0, 0)) -> list[Any]:
        """Runs on real tensors, one for each input; what the Program writes is written into them."""
        parameters = []
        for index, (shape, dtype) in enumerate(self.lowered.parameters):
            slot = next(slot for slot, item in enumerate(self.program.inputs) if item.storage == index)
            parameters.append(storage_of(tensors[slot], self._start(slot, tensors[slot]), shape, dtype))
        if not self.lowered.specialised:
            wide = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
            parameters += [torch.tensor(value, dtype=wide[type(value)]) for value in self.program.payloads]
        if self.lowered.draws:
            parameters += [torch.tensor(value) for value in rng]
        results = self.compiled.run(parameters)
        for place, index in enumerate(self.lowered.written):
            self._write_back(tensors, index, results[place])
        return [self._output(item, tensors, results) for item in self.lowered.outputs]

    def _start(self, slot: int, tensor: torch.Tensor) -> int:
        """Byte of the real storage at which the Program's begins."""
        return (tensor.storage_offset() - self.program.inputs[slot].meta.offset) * tensor.element_size()

    def _write_back(self, tensors: Any, index: int, result: torch.Tensor) -> None:
        slot = next(slot for slot, item in enumerate(self.program.inputs) if item.storage == index)
        start = self._start(slot, tensors[slot]) // result.element_size()
        whole = torch.empty(0, dtype=result.dtype).set_(tensors[slot].untyped_storage())
        whole[start : start + result.numel()] = result.reshape(-1)

    def _output(self, item: Any, tensors: Any, results: list[torch.Tensor]) -> Any:
        if not isinstance(item, Output):
            return item
        if item.on_input:
            slot = next(slot for slot, known in enumerate(self.program.inputs) if known.storage == item.index)
            storage, base = tensors[slot].untyped_storage(), self._start(slot, tensors[slot]) // item.meta.dtype.itemsize
        else:
            storage, base = results[item.index].contiguous().untyped_storage(), 0
        made = torch.empty(0, dtype=item.meta.dtype).set_(storage, item.meta.offset + base, item.meta.sizes, item.meta.strides)
        made = made.conj() if item.meta.conj else made
        return torch._neg_view(made) if item.meta.neg else made


def run_call(op: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """One eager call through the lowering; its tensor arguments are written where the op writes them."""
    program = Program.from_call(op, args, kwargs)
    leaves = torch.utils._pytree.tree_leaves([args, kwargs])
    tensors = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)))
    return ProgramRun(program)(*_in_order(program, tensors))


def _in_order(program: Program, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The Program lists inputs storage by storage."""
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    return [tensor for group in groups.values() for tensor in group]
