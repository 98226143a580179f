"""Cuts an FX graph into parts that run as Programs and parts that need Python or the host.

Every node gets a *level*. Odd levels are Programs, even ones run on the host in between; a node's level is at least that of what it
reads. Work on the device keeps its order; pure work on the CPU (an optimizer's step counts, copies of constants) moves to the earliest
level, so that it seldom comes between two Programs.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from torch_neuronx._utils import DEVICE

# Namespaces whose overloads run as kernels on the device.
NAMESPACES = ("aten", "prims", "neuron")

# Overload packets that read data on the host or whose result's shape depends on data, without PyTorch's tag.
_DYNAMIC = {
    "aten::bincount": "shape depends on data",
    "aten::repeat_interleave": "shape depends on data",
    "aten::_ctc_loss": "shape depends on data",
    "aten::segment_reduce": "reads data on the host",
    "aten::equal": "reads a value on the host",
    "aten::is_nonzero": "reads a value on the host",
    "aten::_linalg_check_errors": "reads a value on the host",
    "aten::resize_": "resizes a storage",
    "aten::set_": "replaces a storage",
}

# Overloads of other namespaces that are calls of a Program on a NeuronCore, where they lower; on an emulated one they run by themselves.
_ON_CHIP = frozenset({"nki::kernel"})

# Operators of higher order whose own implementation only issues work on the device, so that it can be recorded.
_RECORDABLE = frozenset({"flex_attention", "flex_attention_backward", "scan", "map_impl", "associative_scan", "invoke_subgraph"})


@dataclass
class Part:
    """Nodes that run together. ``inputs`` are values made elsewhere, ``outputs`` those that others need, both in order."""

    level: int
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)

    @property
    def is_program(self) -> bool:
        return self.level % 2 == 1

    @property
    def reads_offsets(self) -> bool:
        """True when what a node does may depend on where in its storage an input begins."""
        return any(not isinstance(node.target, torch._ops.OpOverload) or "as_strided" in node.target._schema.name for node in self.nodes
                   if node.target is not operator.getitem and not is_number(node))  # fmt: skip


@dataclass
class Cut:
    """The parts of a graph in the order in which they run, and why there is more than one Program, if there is."""

    parts: list[Part]
    reasons: Counter[str]


def cut(gm: GraphModule) -> Cut:
    """Assigns each node of ``gm`` that computes something to a part. Nodes that are constant numbers are replaced by their values."""
    _fold_numbers(gm.graph)
    levels, reasons = _levels(gm)
    parts: dict[int, Part] = {}
    for node in gm.graph.nodes:
        if node.op in ("call_function", "call_module", "call_method"):
            parts.setdefault(levels[node], Part(levels[node])).nodes.append(node)
    ordered = [parts[level] for level in sorted(parts)]
    _connect(gm.graph, ordered, levels)
    return Cut(ordered, reasons)


# ---- Values ----------------------------------------------------------------------------------------------------------------


def values(node: Node) -> Iterator[Any]:
    """The tensors and numbers that ``node`` stands for, as tracing saw them (fake tensors, symbols)."""
    return (value for value in tree_leaves(node.meta.get("val")) if value is not None)


def is_number(node: Node) -> bool:
    """True for a size or another plain number, possibly a symbol, which Python computes."""
    found = list(values(node))
    return bool(found) and all(isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)) for value in found)


def _devices(node: Node) -> set[str]:
    return {value.device.type for value in values(node) if isinstance(value, torch.Tensor)}


def _is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE


def _is_host_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0


def _reads_only_the_device(node: Node) -> bool:
    for source in node.all_input_nodes:
        for value in values(source):
            if isinstance(value, torch.Tensor) and value.device.type != DEVICE and not _is_host_scalar(value):
                return False
    return True


def _fold_numbers(graph: Graph) -> None:
    for node in reversed(list(graph.nodes)):
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, (int, float, bool)) and not _reads_data(node):
            node.replace_all_uses_with(value)
            graph.erase_node(node)


# ---- Where a node runs -----------------------------------------------------------------------------------------------------


def host_reason(node: Node) -> str | None:
    """Why ``node`` cannot be part of a Program; None when it can."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        name = target.name()
        return None if name in _RECORDABLE else f"higher-order operator {name}"
    if not isinstance(target, torch._ops.OpOverload):
        return f"{getattr(target, '__name__', target)} is Python"
    name = target._schema.name
    devices = _devices(node)
    if devices and devices != {DEVICE}:
        return f"{name} gives a tensor on {' and '.join(sorted(devices - {DEVICE}))}"
    if not _reads_only_the_device(node):
        return f"{name} reads host memory"
    if len({value.device for one in (node, *node.all_input_nodes) for value in values(one) if _is_on_device(value)}) > 1:
        return f"{name} works on two devices"
    if target.namespace not in NAMESPACES and not (name in _ON_CHIP and not _is_emulated(node)):
        return f"custom operator {name}"
    if torch.Tag.data_dependent_output in target.tags:
        return f"{name} reads a value on the host"
    if torch.Tag.dynamic_output_shape in target.tags and not _static_shape(node):
        return f"{name}: shape depends on data"
    if name in _DYNAMIC:
        return f"{name} {_DYNAMIC[name]}"
    if any(isinstance(value, torch.Tensor) and value.layout is not torch.strided for value in values(node)):
        return f"{name} gives a tensor that is not strided"
    if not devices:
        return f"{name} gives no tensor"
    return None


def _is_emulated(node: Node) -> bool:
    from torch_neuronx import _device

    return all(_device._is_emulated(value.device.index) for value in values(node) if _is_on_device(value))


def _static_shape(node: Node) -> bool:
    """True when tracing found a shape without symbols made from data: ``x[i]`` with integer indices has the tag, too."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if any(value.dtype in (torch.bool, torch.uint8) for source in node.all_input_nodes[1:] for value in values(source)
           if isinstance(value, torch.Tensor)):  # fmt: skip
        return False
    return not any(free_unbacked_symbols(value) for value in values(node) if isinstance(value, torch.Tensor))


def _is_host_work(node: Node) -> bool:
    """True for work of PyTorch's own that reads nothing but CPU tensors: only what touches CPU memory orders it."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or not _devices(node):
        return False
    return all(device == "cpu" for source in node.all_input_nodes for device in _devices(source))


def _touches_host(node: Node) -> bool:
    return any("cpu" in _devices(one) for one in (node, *node.all_input_nodes))


def _even(level: int) -> int:
    return level + level % 2


def _levels(gm: GraphModule) -> tuple[dict[Node, int], Counter[str]]:
    levels: dict[Node, int] = {}
    reasons: Counter[str] = Counter()
    now = 0  # level of the last node whose place is fixed
    touched = 0  # level of the last node that touches CPU memory
    written = 0  # level of the last node that writes CPU memory that was there before
    for node in gm.graph.nodes:
        needs = max((levels[source] for source in node.all_input_nodes), default=0)
        if node.op in ("placeholder", "get_attr", "output"):
            levels[node] = 0
            continue
        if _is_getitem(node) or (is_number(node) and not _reads_data(node)):
            levels[node] = needs
            continue
        if _touches_host(node):
            needs = max(needs, written)
        reason = host_reason(node)
        if reason is None:
            levels[node] = now = max(now, needs) | 1
        elif not _is_host_work(node):
            reasons[reason] += 1
            levels[node] = now = touched = written = _even(max(now, needs, touched, written))
        elif node.target._schema.is_mutable:
            levels[node] = written = _even(max(needs, touched))
        else:
            levels[node] = _even(needs)
        if _touches_host(node):
            touched = max(touched, levels[node])
    return levels, reasons


def _is_getitem(node: Node) -> bool:
    return node.target is operator.getitem


def _is_float(node: Node) -> bool:
    """A Program gives tensors, integers and booleans."""
    return any(isinstance(value, (float, torch.SymFloat)) for value in values(node))


def _reads_data(node: Node) -> bool:
    """True for a number that is the value of a tensor (item()), not its size."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.data_dependent_output in node.target.tags


# ---- What goes in and out --------------------------------------------------------------------------------------------------


def _connect(graph: Graph, parts: list[Part], levels: dict[Node, int]) -> None:
    """Fills ``inputs`` and ``outputs`` of each part."""
    wanted: dict[int, dict[Node, None]] = {part.level: {} for part in parts}  # dicts keep order
    for part in parts:
        sources = (source for node in part.nodes for source in node.all_input_nodes)
        local = set(part.nodes)
        part.inputs = list(dict.fromkeys(source for source in sources if source not in local))
        for source in part.inputs:
            if source.op not in ("placeholder", "get_attr"):
                wanted[levels[source]][source] = None
    for source in graph.output_node().all_input_nodes:
        if source.op not in ("placeholder", "get_attr"):
            wanted[levels[source]][source] = None
    for part in parts:
        part.outputs = list(wanted[part.level])
