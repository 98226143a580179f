"""Functional collectives of ``torch.distributed`` (``_c10d_functional``), as DTensor, FSDP and graphs use them.

Note [Replica groups]
A module is the program of every rank, and StableHLO wants each collective to name the groups of all of them, where PyTorch names the
caller's own. A group whose ranks have one distance is a dimension of a mesh over the world, and so are the others'; any other group is
refused. A replica's number is its global rank.

The dtype of a reduction is the tensor's own, on the wire too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from torch_neuronx.lowering.promotion import convert
from torch_neuronx.lowering.table import CallInfo, NotLowered, lowers
from torch_neuronx.lowering.tracer import Tracer

Groups = tuple[tuple[int, ...], ...]


# ---- Groups ----


def mesh_groups(ranks: list[int], world: int) -> Groups | None:
    """The groups of all ranks when ``ranks`` is one of a mesh's, see Note [Replica groups]; None when it is not."""
    size, step = len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1
    block = size * step
    if step < 1 or world % block or ranks != [ranks[0] + place * step for place in range(size)] or ranks[0] % block >= step:
        return None
    return tuple(tuple(first + inner + place * step for place in range(size)) for first in range(0, world, block) for inner in range(step))


def _resolved(group: Any) -> Any:
    """The process group of a name; graphs hold names."""
    from torch.distributed.distributed_c10d import GroupName, _resolve_process_group

    return _resolve_process_group(GroupName(group)) if isinstance(group, str) else group


def _groups(name: Any, op: str) -> Groups:
    """Replica groups of the process group ``name`` (or the group itself); the module then is one of as many replicas as there are ranks."""
    from torch import distributed

    ranks, world = distributed.get_process_group_ranks(_resolved(name)), distributed.get_world_size()
    groups = mesh_groups(ranks, world)
    if groups is None:
        raise NotLowered(op, f"the ranks {ranks} are no dimension of a mesh over {world} ranks, so other ranks' groups are not known")
    if Tracer.current is not None:
        Tracer.current.replicas = world
    return groups


# ---- StableHLO ----


def _matrix(rows: Any) -> Any:
    return ir.DenseIntElementsAttr.get(np.array(rows, np.int64))


def _reduced(op: Any, reduction: str) -> Any:
    """Fills the region of ``op`` with the scalar ``reduction`` and gives its result."""
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(op.operands[0].type).element_type)
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.return_([getattr(stablehlo, reduction)(*block.arguments)])
    return op.result


def _all_reduce(x: Any, kind: Any, groups: Groups, reduction: str) -> Any:
    return _reduced(stablehlo.AllReduceOp([kind], [x], _matrix(groups)), reduction)


def _reduce_scatter(x: Any, kind: Any, groups: Groups, reduction: str) -> Any:
    return _reduced(stablehlo.ReduceScatterOp(kind, x, 0, _matrix(groups)), reduction)


def _all_gather(x: Any, kind: Any, groups: Groups) -> Any:
    return stablehlo.AllGatherOp([kind], [x], 0, _matrix(groups)).results[0]


def _all_to_all(x: Any, _kind: Any, groups: Groups, split: int, concat: int) -> Any:
    return stablehlo.AllToAllOp([x], split, concat, len(groups[0]), _matrix(groups)).results[0]


def _permute(x: Any, _kind: Any, pairs: Groups) -> Any:
    return stablehlo.CollectivePermuteOp(x, _matrix(pairs)).result


def _same(shape: Any, **_: Any) -> Any:
    return shape


def _scaled_first(shape: Any, groups: Groups, **_: Any) -> Any:
    return (shape[0] * len(groups[0]), *shape[1:])


def _divided_first(shape: Any, groups: Groups, **_: Any) -> Any:
    return (shape[0] // len(groups[0]), *shape[1:])


def _exchanged(shape: Any, groups: Groups, split: int, concat: int) -> Any:
    shape = list(shape)
    shape[split] //= len(groups[0])
    shape[concat] *= len(groups[0])
    return tuple(shape)


def _primitive(name: str, build: Callable[..., Any], shape: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX primitive of one array that becomes one StableHLO operation. JAX has its own only inside a mesh of its devices."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x, **options: ShapedArray(shape(x.shape, **options), x.dtype))

    def lowered(context: Any, x: Any, **options: Any) -> Any:
        return [build(x, mlir.aval_to_ir_type(context.module_context, context.avals_out[0]), **options)]

    mlir.register_lowering(primitive, lowered)
    return primitive.bind


all_reduce = _primitive("neuron_all_reduce", _all_reduce, _same)
reduce_scatter = _primitive("neuron_reduce_scatter", _reduce_scatter, _divided_first)
all_gather = _primitive("neuron_all_gather", _all_gather, _scaled_first)
all_to_all = _primitive("neuron_all_to_all", _all_to_all, _exchanged)
permute = _primitive("neuron_permute", _permute, _same)

_REDUCTIONS = {"sum": "add", "avg": "add", "product": "multiply", "max": "maximum", "min": "minimum"}
_REDUCTIONS |= {"band": "and_", "bor": "or_", "bxor": "xor"}
_OF_BOOL = {"add": "or_", "maximum": "or_", "multiply": "and_", "minimum": "and_"}


def _with_reduction(function: Callable[..., Any], op: str, x: Any, reduce_op: str, group: Any) -> Any:
    name = reduce_op.lower()
    reduction = _REDUCTIONS.get(name)
    if reduction is None:
        raise NotLowered(op, f'the reduction "{reduce_op}" has no counterpart; there are {", ".join(_REDUCTIONS)}')
    groups = _groups(group, op)
    if x.dtype == jnp.bool_:
        return function(x, groups=groups, reduction=_OF_BOOL.get(reduction, reduction))
    result = function(x, groups=groups, reduction=reduction)
    if name == "avg":
        size = len(groups[0])
        result = result // size if jnp.issubdtype(x.dtype, jnp.integer) else result / convert(size, result.dtype)
    return result


# ---- Overloads ----

_SPACE = "_c10d_functional::"


def _each(one: Callable[..., Any]) -> Callable[..., Any]:
    """The coalesced form: a list of tensors."""
    return lambda tensors, *rest: [one(x, *rest) for x in tensors]


def _lowers(name: str, one: Callable[..., Any]) -> None:
    lowers(f"{_SPACE}{name}")(one)
    lowers(f"{_SPACE}{name}_coalesced")(_each(one))


_lowers("all_reduce", lambda x, op, group: _with_reduction(all_reduce, f"{_SPACE}all_reduce", x, op, group))
_lowers(
    "reduce_scatter_tensor",
    lambda x, op, _size, group: _with_reduction(reduce_scatter, f"{_SPACE}reduce_scatter_tensor", x, op, group),
)
_lowers("all_gather_into_tensor", lambda x, _size, group: all_gather(x, groups=_groups(group, f"{_SPACE}all_gather_into_tensor")))


@lowers("_c10d_functional::wait_tensor")
def _wait(x: Any) -> Any:
    """The module's own order is what waits."""
    return x


@lowers("_c10d_functional::broadcast")
def _broadcast(x: Any, source: int, group: Any) -> Any:
    """What all have, of which the source's is kept: exact in every dtype, and made of what the chip's runtime names."""
    groups = _groups(group, f"{_SPACE}broadcast")
    return all_gather(x[None], groups=groups)[source]


@lowers("_c10d_functional::all_to_all_single", "_c10d_functional_autograd::all_to_all_single", call=True)
def _all_to_all_single(call: CallInfo, x: Any, output_sizes: list[int], input_sizes: list[int], group: Any) -> Any:
    """Equal parts for all, or everything to one rank at a fixed distance, which is how PyTorch writes a permutation."""
    from torch import distributed

    op = f"{_SPACE}all_to_all_single"
    groups = _groups(group, op)
    size = len(groups[0])
    if len({*output_sizes, *input_sizes}) <= 1:
        return all_to_all(x, groups=groups, split=0, concat=0)
    shift = _ring_shift(output_sizes, input_sizes, distributed.get_rank(_resolved(group)))
    if shift is None:
        raise NotLowered(op, "parts of unequal size: the ranks' programs would differ in shape; pad the parts to one size")
    return permute(x, pairs=tuple((ranks[place], ranks[(place + shift) % size]) for ranks in groups for place in range(size)))


def _ring_shift(output_sizes: list[int], input_sizes: list[int], place: int) -> int | None:
    """How far everything travels, when all goes to one rank and comes from one that is as far away on the other side."""
    targets = [rank for rank, size in enumerate(input_sizes) if size]
    sources = [rank for rank, size in enumerate(output_sizes) if size]
    if len(targets) != 1 or len(sources) != 1 or input_sizes[targets[0]] != output_sizes[sources[0]]:
        return None
    shift = (targets[0] - place) % len(input_sizes)
    return shift if (place - sources[0]) % len(input_sizes) == shift else None


@lowers("_dtensor::shard_dim_alltoall")
def _shard_dim(x: Any, gather_dim: int, shard_dim: int, group: Any) -> Any:
    """A DTensor's shards along ``gather_dim`` become shards along ``shard_dim``."""
    return all_to_all(x, groups=_groups(group, "_dtensor::shard_dim_alltoall"), split=shard_dim, concat=gather_dim)
