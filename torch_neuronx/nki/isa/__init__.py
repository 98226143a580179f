# ruff: noqa: F401
"""``nki.isa``: the instructions of a NeuronCore. Each function is a row of the opcode table (``torch_neuronx.nki.opcode.OPCODES``)."""

from torch_neuronx.nki.errors import NkiValidationError
from torch_neuronx.nki.errors import unknown_name as _unknown_name
from torch_neuronx.nki.instruction import Instruction as NkiInstruction
from torch_neuronx.nki.instruction import Register as NkiScalar
from torch_neuronx.nki.instruction import Register as VirtualRegister
from torch_neuronx.nki.isa import constants
from torch_neuronx.nki.isa.constants import (
    dge_mode,
    dma_engine,
    engine,
    gpsimd_engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    sync_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from torch_neuronx.nki.isa.control import (
    core_barrier,
    get_nc_sub_version,
    get_nc_version,
    register_alloc,
    register_load,
    register_move,
    register_store,
    sendrecv,
)
from torch_neuronx.nki.isa.dma import dma_compute, dma_copy, dma_transpose
from torch_neuronx.nki.isa.gpsimd import (
    affine_select,
    iota,
    local_gather,
    nc_n_gather,
    nonzero_with_count,
    sequence_bounds,
    tensor_partition_reduce,
    topk,
)
from torch_neuronx.nki.isa.mx import nc_matmul_mx, quantize_mx
from torch_neuronx.nki.isa.random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from torch_neuronx.nki.isa.reduction import (
    bn_aggr,
    bn_stats,
    max8,
    nc_find_index8,
    nc_match_replace8,
    tensor_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from torch_neuronx.nki.isa.scalar import activate2, activation, activation_reduce
from torch_neuronx.nki.isa.select import range_select, select_reduce, tensor_copy_predicated
from torch_neuronx.nki.isa.tensor import nc_matmul, nc_transpose
from torch_neuronx.nki.isa.vector import (
    exponential,
    memset,
    nc_stream_shuffle,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_scalar,
    tensor_tensor,
)

__all__ = [name for name in dir() if not name.startswith("_")]


def __getattr__(name: str) -> object:
    raise _unknown_name(__name__, name, "torch_neuronx.nki.language")
