"""Runs Programs by their lowering, on XLA:CPU: storages in, storages out, as a chip's runtime does.

``TORCH_NEURONX_EXECUTOR=xla`` makes eager calls of the emulated device run this way (:class:`Executor`): the numbers of a script are then
those of the module that a chip would be given. Slow: every new kind of call is compiled, and its tensors are copied in and out.

For finding wrong lowerings, and no target: a dispatch mode in Python takes the calls before they reach the front end, so neither streams,
nor its cache, nor the profiler sees them.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from torch_neuronx import _device
from torch_neuronx._utils import _get_device_index
from torch_neuronx.lowering.emit import Lowered, Output, lower
from torch_neuronx.lowering.execute import CompiledModule
from torch_neuronx.lowering.program import Program
from torch_neuronx.lowering.recorder import only_metadata
from torch_neuronx.lowering.schema import written_arguments
from torch_neuronx.lowering.table import NotLowered

_PAYLOADS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class ProgramRun:
    """One Program, lowered, sent through HLO bytes to XLA:CPU."""

    def __init__(self, program: Program, target: str = "portable") -> None:
        self.program = program
        self.lowered: Lowered = lower(program, target)
        self.compiled = CompiledModule(self.lowered.hlo())
        self._first = [
            next(slot for slot, item in enumerate(program.inputs) if item.storage == index) for index in range(len(program.storages))
        ]

    def __call__(
        self, *tensors: torch.Tensor, rng: tuple[int, int] = (0, 0), payloads: list[Any] | None = None, device: Any = None
    ) -> list[Any]:
        """Runs on real tensors, one for each input, on any device; what the Program writes is written into them.

        Args:
            rng: seed and offset of the random words, where it draws any.
            payloads: the numbers of this launch; else the Program's examples.
            device: where results go; else where the first tensor is, or the host.
        """
        device = device or (tensors[0].device if tensors else torch.device("cpu"))
        parameters = [self._stored(tensors, index, shape, dtype) for index, (shape, dtype) in enumerate(self.lowered.parameters)]
        if not self.lowered.specialised:
            values = self.program.payloads if payloads is None else payloads
            parameters += [torch.tensor(value, dtype=_PAYLOADS[type(value)]) for value in values]
        if self.lowered.draws:
            parameters += [torch.tensor(value) for value in rng]
        results = self.compiled.run(parameters)
        for place, index in enumerate(self.lowered.written):
            shape, dtype = self.lowered.parameters[index]
            self._part(tensors, index, shape, dtype).copy_(results[place].reshape(-1))
        on_device: dict[int, torch.Tensor] = {}
        return [self._output(item, tensors, results, on_device, device) for item in self.lowered.outputs]

    def _start(self, tensors: Any, index: int) -> int:
        """Byte of the tensor's storage at which the Program's storage begins."""
        slot = self._first[index]
        meta, tensor = self.program.inputs[slot].meta, tensors[slot]
        return int((tensor.storage_offset() - meta.offset) * tensor.element_size())

    def _part(self, tensors: Any, index: int, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """The elements of storage number ``index``, in one dimension."""
        tensor, start = tensors[self._first[index]], self._start(tensors, index)
        whole = torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage())
        return whole[start // dtype.itemsize :][: torch.Size(shape).numel()]

    def _stored(self, tensors: Any, index: int, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return self._part(tensors, index, shape, dtype).cpu().clone().reshape(shape)

    def _output(self, item: Any, tensors: Any, results: list[torch.Tensor], on_device: dict[int, torch.Tensor], device: Any) -> Any:
        if isinstance(item, list):
            return [self._output(part, tensors, results, on_device, device) for part in item]
        if not isinstance(item, Output):
            return item
        if item.on_input:
            storage = tensors[self._first[item.index]].untyped_storage()
            base = self._start(tensors, item.index) // item.meta.dtype.itemsize
        else:
            if item.index not in on_device:
                on_device[item.index] = results[item.index].contiguous().to(device)
            storage, base = on_device[item.index].untyped_storage(), 0
        made = torch.empty(0, dtype=item.meta.dtype, device=device)
        made = made.set_(storage, item.meta.offset + base, item.meta.sizes, item.meta.strides)
        made = made.conj() if item.meta.conj else made
        return torch._neg_view(made) if item.meta.neg else made


def in_order(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Different tensors of a call, storage by storage: the order of its Program's inputs."""
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in dict.fromkeys(tensors):
        groups.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    return [tensor for group in groups.values() for tensor in group]


class Executor(TorchDispatchMode):
    """Inside it, calls on tensors of ``neuron`` run by their lowering, on this thread and in its backward passes.

    Views, copies between devices and ``item`` are not calls of a chip's programs and stay what they are. What does not lower runs on the
    emulated device's own kernel as ``TORCH_NEURONX_FALLBACK`` says, and is counted in ``kept``. ``torch.compile`` runs its functions in
    eager, so that their calls are seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[Any, ProgramRun | NotLowered] = {}
        self.calls = 0  # that ran by their lowering
        self.kept: dict[str, int] = {}  # overloads that did not lower -> calls
        self._stance: Any = None

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        if self._stance is not None:
            self._stance.__exit__(*exception)
            self._stance = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._stance is None:  # not earlier: it imports Dynamo
            self._stance = torch.compiler.set_stance("force_eager")
            self._stance.__enter__()
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not isinstance(func, torch._ops.OpOverload) or only_metadata(func) or not _on_the_device(func, tensors, kwargs):
            return func(*args, **kwargs)
        device = next((tensor.device for tensor in tensors if tensor.device.type == "neuron"), kwargs.get("device"))
        args, kwargs = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) and not leaf.dim() else leaf, (args, kwargs))
        program = Program.from_call(func, args, kwargs)
        run = self._run_of(program)
        if isinstance(run, NotLowered):
            self._keep(func, run)
            return func(*args, **kwargs)
        self.calls += 1
        return self._launch(run, program, func, args, kwargs, device)

    def _run_of(self, program: Program) -> ProgramRun | NotLowered:
        call = program.calls[0]
        kind = (call.op, tuple(program.inputs), tuple(program.storages), repr(call.args), repr(sorted(call.kwargs.items())))
        key: Any = (kind, tuple(type(value) for value in program.payloads))
        known = self.runs.get(key)
        if isinstance(known, ProgramRun) and known.lowered.specialised:
            key = (kind, tuple(program.payloads))
            known = self.runs.get(key)
        if known is None:
            _require_the_emulated_device()
            try:
                known = ProgramRun(program)
            except NotLowered as error:
                known = error
            self.runs[key] = known
            if isinstance(known, ProgramRun) and known.lowered.specialised:
                self.runs[kind, tuple(program.payloads)] = known
        return known

    def _keep(self, func: Any, error: NotLowered) -> None:
        policy, name = os.environ.get("TORCH_NEURONX_FALLBACK") or "warn", func.name()
        if policy == "error":
            raise RuntimeError(f"TORCH_NEURONX_EXECUTOR=xla: {error}. TORCH_NEURONX_FALLBACK=warn runs it on the emulated device's kernel.")
        if policy == "warn" and name not in self.kept:
            warnings.warn(f"TORCH_NEURONX_EXECUTOR=xla: {error}; the emulated device's own kernel runs it", stacklevel=4)
        self.kept[name] = self.kept.get(name, 0) + 1

    @staticmethod
    def _launch(run: ProgramRun, program: Program, func: Any, args: Any, kwargs: Any, device: Any) -> Any:
        tensors = in_order([leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)])
        with _Generator(kwargs.get("generator"), device, run.lowered) as rng:
            results = run(*tensors, rng=rng, payloads=program.payloads, device=device)
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        written = iter(given[name] for name in written_arguments(func))
        returned = []
        for told, made, item in zip(run.lowered.outputs, results, func._schema.returns, strict=True):
            if item.alias_info is None or not item.alias_info.is_write:
                returned.append(made)
                continue
            target = next(written)
            if isinstance(told, Output) and not told.on_input:  # an out= tensor of another size
                target.resize_(made.shape).copy_(made)
            returned.append(target)
        return tuple(returned) if len(returned) > 1 else returned[0] if returned else None


class _Generator:
    """Seed and offset of a device's generator for one launch, which moves on by what the launch draws."""

    def __init__(self, generator: torch.Generator | None, device: Any, lowered: Lowered) -> None:
        self.generator, self.device, self.lowered = generator, device, lowered

    def __enter__(self) -> tuple[int, int]:
        if not self.lowered.draws:
            return 0, 0
        if self.generator is None:
            from torch_neuronx.random import default_generators

            self.generator = default_generators()[_get_device_index(self.device, optional=True)]
        self.state = self.generator.get_state()
        seed, offset = self.state[:16].view(torch.int64).tolist()
        return seed, offset

    def __exit__(self, *exception: Any) -> None:
        if self.lowered.draws and exception[0] is None:
            assert self.generator is not None
            self.state[8:16].view(torch.int64).add_(self.lowered.random_words)
            self.generator.set_state(self.state)


def _on_the_device(func: Any, tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> bool:
    """Whether everything is on ``neuron``, but for 0-dim tensors of the host: then it is a chip's work. Memory alone is not."""
    if func._schema.name in ("aten::empty", "aten::empty_strided", "aten::_pin_memory"):
        return False
    named = kwargs.get("device")
    if named is not None and torch.device(named).type != "neuron":
        return False
    if any(tensor.layout is not torch.strided or tensor.is_nested for tensor in tensors):
        return False
    on_device = any(tensor.device.type == "neuron" for tensor in tensors) or (not tensors and named is not None)
    copies = func._schema.name in ("aten::copy_", "aten::_copy_from", "aten::_to_copy")
    return on_device and all(tensor.device.type == "neuron" or (tensor.dim() == 0 and not copies) for tensor in tensors)


def _require_the_emulated_device() -> None:
    if not _device.get_device_properties(0).is_emulated:
        raise RuntimeError("TORCH_NEURONX_EXECUTOR=xla runs on the host in place of the emulated device, and this is a chip. Unset it.")


def install() -> None:
    """TORCH_NEURONX_EXECUTOR=xla, on the thread that imports PyTorch."""
    Executor().__enter__()
