"""Ahead of time: compile an exported program, keep it in a file, and run it elsewhere without the model's Python.

>>> from torch_neuronx import aot
>>> program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
>>> aot.save(program, "model.neuron")
>>> model = aot.load("model.neuron")   # another process, which has never seen the model's class
>>> model(x)

A file holds generated Python source and the weights, so load only what you trust: loading runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch.utils import _pytree as pytree

from torch_neuronx import __version__
from torch_neuronx._utils import DEVICE

_FORMAT = "torch_neuronx.aot 1"

File = str | os.PathLike[str] | IO[bytes]


@dataclass
class _Input:
    """What the exported program promises of one input: a tensor's dtype and sizes, or a value. A size is a number or a symbol's name."""

    name: str
    dtype: torch.dtype | None
    sizes: tuple[int | str, ...]
    value: Any = None


@dataclass
class _Contents:
    format: str
    torch_version: str
    code: Any  # CompiledCode
    state: list[torch.Tensor]  # parameters, buffers and constants, in the order of the graph's inputs
    state_names: list[str]
    inputs: list[_Input]
    ranges: dict[str, tuple[int, int | None]]  # of symbols
    in_spec: str
    out_spec: str
    mutated: list[tuple[str, int]]  # for the first outputs: ("state" or "input", index) that each is written to
    outputs: list[tuple[str, Any]]  # for the others: ("value", constant), ("input", index) or ("output", index)


def save(program: torch.export.ExportedProgram, file: File) -> None:
    """Compiles ``program`` and writes it to ``file`` (a path, or a binary file).

    Args:
        program: what :func:`torch.export.export` gives. A program of a model on the CPU is moved to `neuron` first.

    Raises TypeError for anything else, and ValueError for a program with inputs that are neither tensors nor plain values.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        raise TypeError(f"torch_neuronx.aot.save() takes a torch.export.ExportedProgram, but got {type(program).__name__}")
    contents = _compile(program)
    torch.save(contents, file)


def load(file: File) -> Callable[..., Any]:
    """A callable with the signature of the exported model, on device `neuron`. Use it under ``torch.no_grad()`` or not: it has no gradient.

    Raises ValueError for a file that :func:`save` of this version has not written.
    """
    import torch_neuronx.compile.code  # noqa: F401  (what the file refers to)

    contents = torch.load(file, weights_only=False)
    if not isinstance(contents, _Contents) or contents.format != _FORMAT:
        found = getattr(contents, "format", type(contents).__name__)
        raise ValueError(f"the file holds {found!r}, not {_FORMAT!r}; write it with torch_neuronx.aot.save() of version {__version__}")
    if contents.torch_version != torch.__version__:
        raise ValueError(f"the file was written under PyTorch {contents.torch_version}; this is {torch.__version__}. Save it again here")
    return Loaded(contents)


class Loaded:
    """A loaded program. Its parameters and buffers are in :attr:`state`, by name."""

    def __init__(self, contents: _Contents):
        self._contents = contents
        self._in_spec, self._out_spec = pytree.treespec_loads(contents.in_spec), pytree.treespec_loads(contents.out_spec)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and constants; write into them to change the model."""
        return dict(zip(self._contents.state_names, self._contents.state, strict=True))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        contents = self._contents
        given, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise TypeError(f"the program was exported for arguments of the structure {self._in_spec}, but got {spec}")
        _check(contents, given)
        with torch.no_grad():
            results = contents.code([*contents.state, *given])
            for (kind, index), result in zip(contents.mutated, results, strict=False):
                (contents.state if kind == "state" else given)[index].copy_(result)
        rest = results[len(contents.mutated) :]
        return pytree.tree_unflatten([_output(kind, what, given, rest) for kind, what in contents.outputs], self._out_spec)


def _output(kind: str, what: Any, given: Sequence[Any], rest: Sequence[Any]) -> Any:
    return {"value": lambda: what, "input": lambda: given[what], "output": lambda: rest[what]}[kind]()


# ---- Loading: what the caller hands over -----------------------------------------------------------------------------------


def _check(contents: _Contents, given: Sequence[Any]) -> None:
    """Raises what names the input that differs from what was exported."""
    bound: dict[str, int] = {}
    for wanted, value in zip(contents.inputs, given, strict=True):
        if wanted.dtype is None:
            if value != wanted.value:
                raise ValueError(f"{wanted.name} was {wanted.value!r} when the program was exported, and is part of it; got {value!r}")
            continue
        if not isinstance(value, torch.Tensor) or value.dtype != wanted.dtype or value.dim() != len(wanted.sizes):
            kind = f"{value.dtype} of {value.dim()} dimensions" if isinstance(value, torch.Tensor) else type(value).__name__
            raise TypeError(f"{wanted.name} must be a {wanted.dtype} tensor of {len(wanted.sizes)} dimensions, but got {kind}")
        if value.device.type != DEVICE:
            raise TypeError(f"{wanted.name} must be on device {DEVICE}, but is on {value.device}; move it with .to({DEVICE!r})")
        for dim, (size, actual) in enumerate(zip(wanted.sizes, value.shape, strict=True)):
            expected = bound.setdefault(size, actual) if isinstance(size, str) else size
            if actual != expected:
                raise ValueError(f"{wanted.name} has size {actual} in dimension {dim}, but the program wants {expected} there")
            low, high = contents.ranges.get(size, (0, None)) if isinstance(size, str) else (0, None)
            if actual < low or (high is not None and actual > high):
                limit = f"at least {low}" if high is None else f"from {low} to {high}"
                raise ValueError(f"{wanted.name} has size {actual} in dimension {dim}, but the program was exported for {limit}")


# ---- Saving ----------------------------------------------------------------------------------------------------------------


def _compile(program: torch.export.ExportedProgram) -> _Contents:
    from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

    from torch_neuronx.compile import foreign
    from torch_neuronx.compile.code import CompiledCode
    from torch_neuronx.compile.options import Settings

    program = _on_device(program).run_decompositions({})
    signature, graph = program.graph_signature, program.graph_module
    foreign.check(graph, Settings())
    values = {node.name: node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")}
    state: list[torch.Tensor] = []
    names: list[str] = []
    inputs: list[_Input] = []
    places: dict[str, tuple[str, int]] = {}  # of inputs by the name that outputs refer to
    for spec in signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            places[spec.arg.name] = ("input", len(inputs))
            inputs.append(_input(spec.arg, values.get(spec.arg.name)))
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            assert spec.target is not None
            tensor = program.state_dict.get(spec.target)
            tensor = program.constants[spec.target] if tensor is None else tensor
            places[spec.target] = ("state", len(state))
            state.append(tensor.detach())
            names.append(spec.target)
        else:
            raise ValueError(f"the exported program has an input of kind {spec.kind.name} ({spec.arg.name}), which a file cannot hold")
    mutated: list[tuple[str, int]] = []
    outputs: list[tuple[str, Any]] = []
    for spec in signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            assert spec.target is not None
            mutated.append(places[spec.target])
        elif isinstance(spec.arg, ConstantArgument):
            outputs.append(("value", spec.arg.value))
        else:
            assert isinstance(spec.arg, TensorArgument) or hasattr(spec.arg, "name")
            outputs.append(("output", len(outputs)))
    return _Contents(
        _FORMAT,
        torch.__version__,
        CompiledCode(graph, "exported"),
        state,
        names,
        inputs,
        _ranges(program),
        pytree.treespec_dumps(program.call_spec.in_spec),
        pytree.treespec_dumps(program.call_spec.out_spec),
        mutated,
        outputs,
    )


def _on_device(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """``program`` itself when it works on `neuron`, else a copy that does."""
    from torch.export.passes import move_to_device_pass

    tensors = [
        value for node in program.graph.nodes for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)
    ]
    if any(tensor.device.type == DEVICE for tensor in tensors):
        return program
    return move_to_device_pass(program, f"{DEVICE}:0")


def _input(argument: Any, value: Any) -> _Input:
    if isinstance(value, torch.Tensor):
        return _Input(argument.name, value.dtype, tuple(size if isinstance(size, int) else str(size) for size in value.shape))
    if isinstance(value, torch.SymInt):
        raise ValueError(f"input {argument.name} is an integer that varies; pass a tensor whose size it is, or export it as a constant")
    return _Input(argument.name, None, (), getattr(argument, "value", value))


def _ranges(program: torch.export.ExportedProgram) -> dict[str, tuple[int, int | None]]:
    limit = 1 << 62
    return {str(symbol): (int(r.lower), int(r.upper) if r.upper < limit else None) for symbol, r in program.range_constraints.items()}
