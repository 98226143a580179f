"""Backend "neuron": AOTAutograd, then :class:`torch_neuronx.compile.code.CompiledCode` for each direction."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.compiler.config as compiler_config
import torch.distributed as dist
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.output_code import OutputCode

from torch_neuronx.compile import foreign, gradients_of_parts, host_scalars, in_place, random_state, rewrites
from torch_neuronx.compile.code import CompiledCode
from torch_neuronx.compile.options import Settings


def compile_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], settings: Settings) -> Callable[..., Any]:
    """Compiles what Dynamo captured. ``example_inputs`` are fake tensors, or symbols, one for each placeholder of ``gm``."""

    def compiler(direction: str) -> SerializableAOTDispatchCompiler:
        def one_direction(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> OutputCode:
            if direction == "inference":  # with gradients, the partitioner has done so
                graph.graph = fx_graph_cse(graph.graph)
            rewrites.apply(graph)
            foreign.check(graph, settings)
            random_state.replace(graph)
            in_place.restore(graph)
            gradients_of_parts.join(graph)
            host_scalars.join(graph)
            return CompiledCode(graph, _name(settings, direction))

        return SerializableAOTDispatchCompiler(OutputCode, one_direction)

    aot = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    # A cache entry holds both directions and our own code, so both are made now.
    with (
        functorch_config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True, unlift_effect_tokens=True),
        compiler_config.patch(cache_key_tag=_cache_key_tag(settings)),  # type: ignore[attr-defined]
    ):
        return aot(gm, example_inputs)


def _cache_key_tag(settings: Settings) -> str:
    """What decides about the compiled code besides the graph: the user's own tag, the options, the groups, the code of this package."""
    return "|".join(
        (compiler_config.cache_key_tag, repr(settings), str(foreign.is_allowed(settings)), _groups(), _own_code(), rewrites.tag())
    )


def _groups() -> str:
    """This process's rank, and the names and ranks of its process groups; "" without any.

    Graphs of DTensors hold names of groups and where this rank's shards begin. PyTorch's key has the mesh, which is the same on all ranks,
    but neither of these, so that one rank would take another's code: for another group, or with the other's numbers.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    groups = [(one["pg_name"], one["ranks"]) for one in dist.distributed_c10d._get_all_pg_configs()]
    return repr((dist.get_rank(), groups))


@functools.cache
def _own_code() -> str:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _name(settings: Settings, direction: str) -> str:
    return f"{settings.model_name} {direction}".strip()
